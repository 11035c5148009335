"""Presets of tasks that were made around a backbone after its conversion."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras


def name_task_carrier(
    path: Path, backbone_class: type, task_carrier: Callable[[Any], type]
) -> None:
    """Lets a preset's task be found by the class of its backbone.

    KerasHub looks for the class of tasks that goes with the class of the backbone. Where it finds
    another class in `task.json`, it makes a new task, whose own weights are random. A task that is
    made around a converted backbone is of the plain class. So its name in `task.json` becomes that
    of its carrier. A task of another backbone, as an older file may hold, stays as it is.

    Args:
        path: The file `task.json` of the preset, if there is one.
        backbone_class: The class of the backbone, a carrier, that has been saved there.
        task_carrier: Makes the carrier of a class of tasks.
    """
    if not path.exists():
        return
    config = json.loads(path.read_text())
    backbone = config.get("config", {}).get("backbone") or {}
    if backbone.get("registered_name") != keras.saving.get_registered_name(backbone_class):
        return
    found: Any = keras.saving.get_registered_object(config.get("registered_name"))
    if found is None or getattr(found, "backbone_cls", None) is backbone_class:
        return
    carrier = task_carrier(found)
    registered = keras.saving.get_registered_name(carrier)
    named = {"module": carrier.__module__, "class_name": carrier.__name__}
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps({**config, **named, "registered_name": registered}, indent=4))
    os.replace(scratch, path)
