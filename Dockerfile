# Train in a container, which needs docker alone; on GPUs a driver and the NVIDIA Container Toolkit too.
#   docker build --build-arg UID=$(id -u) -t lab .
#   docker run --rm --gpus all --ipc=host -v "$PWD/outputs:/home/me/project/outputs" lab train data=h5
FROM python:3.12-slim
# git: a run notes its commit. g++: torch.compile
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends git g++ && rm -rf /var/lib/apt/lists/*
# whose files in outputs/ are
ARG UID=1000
RUN useradd --create-home --uid "$UID" --shell /bin/bash me
USER $UID
WORKDIR /home/me/project
# what .venv depends on: made again only where one of these has changed. torch brings its CUDA libraries along
COPY --chown=me pyproject.toml constraints.txt* README.md LICENSE* run ./
COPY --chown=me packages packages
RUN mkdir src outputs && PIP_NO_CACHE_DIR=1 ./run python --version \
  && echo "source ~/project/tools/complete.bash" >>~/.bashrc
COPY --chown=me . .
ENTRYPOINT ["./run"]
CMD ["--help"]
