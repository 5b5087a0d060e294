"""The control groups (cgroups) of a process, with which containers and schedulers limit it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

OWN = Path("/proc/self")


def levels_of(controller: str, process: Path = OWN) -> Iterator[tuple[int, Path]]:
    """Yield (version of cgroups, 1 or 2; folder) for each group that may limit the process, innermost first.

    controller: cpu or memory. process: folder with the process's `cgroup` and `mountinfo`."""
    try:
        groups = [line.split(":", 2) for line in (process / "cgroup").read_text(errors="surrogateescape").splitlines()]
        lines = (process / "mountinfo").read_text(errors="surrogateescape").splitlines()
        mounts = [[word.replace(r"\040", " ") for word in line.split(" ")] for line in lines]
    except OSError:  # not Linux
        return
    for mount in mounts:
        root, point, (kind, _, options) = mount[3], Path(mount[4]), mount[mount.index("-") + 1 :][:3]
        for _, controllers, path in groups:
            if (kind, controllers) == ("cgroup2", ""):
                version = 2
            elif kind == "cgroup" and controller in options.split(",") and controller in controllers.split(","):
                version = 1
            else:
                continue
            # in a container the path may be the host's, while the mount shows the container's cgroup as the root
            inside = os.path.relpath(path, root)
            folder = point if inside.startswith("..") else point / inside
            for level in [folder, *folder.parents][: len(folder.parts) - len(point.parts) + 1]:
                yield version, level
