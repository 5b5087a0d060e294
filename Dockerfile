# Train in a container. This needs only docker; for GPUs also a driver and the NVIDIA Container Toolkit.
#   docker build --build-arg UID=$(id -u) -t lab .
#   docker run --rm --gpus all --ipc=host -v "$PWD/outputs:/home/me/project/outputs" lab train data=h5
FROM python:3.12-slim
# git: a run records its commit. g++: torch.compile needs a compiler
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends git g++ && rm -rf /var/lib/apt/lists/*
# the user who will own the files in outputs/
ARG UID=1000
RUN useradd --create-home --uid "$UID" --shell /bin/bash me
USER $UID
WORKDIR /home/me/project
# the files that .venv depends on: docker rebuilds this layer only if one of them changes. torch includes CUDA libraries
COPY --chown=me pyproject.toml constraints.txt* README.md LICENSE* run ./
COPY --chown=me packages packages
RUN mkdir src outputs && PIP_NO_CACHE_DIR=1 ./run python --version \
  && echo "source ~/project/tools/complete.bash" >>~/.bashrc
COPY --chown=me . .
ENTRYPOINT ["./run"]
CMD ["--help"]
