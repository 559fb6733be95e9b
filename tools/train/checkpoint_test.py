"""The store by itself, in this process; whole runs are in kill_test.py and loop_test.py."""

import json

import pytest
import torch

from faceter.model.config import ConfigError
from faceter.tools.train import checkpoint, parallel

IDENTITY = {"seed": 0, "gem": {"dim": 16, "events": [{"name": "a", "dim": 4}]}}


@pytest.fixture
def processes(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with parallel.start("cpu") as alone:
        yield alone


@pytest.fixture
def store(tmp_path, processes):
    warnings = []
    store = checkpoint.CheckpointStore(tmp_path / "c", processes, IDENTITY, keep=2, warn=warnings.append)
    store.warnings = warnings
    return store


def tensors(value):
    return {"model": {"w": torch.full((3, 2), float(value)), "b": torch.tensor(float(value))}}


def steps(store):
    return sorted(p.name for p in store.folder.iterdir())


def test_what_is_saved_is_loaded(store):
    host = {"a": [1, 2.5, None, "x"], "t": torch.arange(5), "nested": {"n": 3}}
    store.save(7, tensors(7), host)
    target = tensors(0)
    got = store.load(store.newest(), target)
    assert torch.equal(target["model"]["w"], tensors(7)["model"]["w"])
    assert target["model"]["b"] == 7
    assert torch.equal(got.pop("t"), host.pop("t"))
    assert got == host
    part = {"model": {"b": torch.tensor(0.0)}}
    store.load(store.path(7), part)
    assert part["model"]["b"] == 7
    assert store.warnings == []


def test_newest_and_best_stay(store):
    for step, best in ((1, 1), (2, 1), (3, 1), (10, 1)):
        store.save(step, tensors(step), {}, best)
    assert steps(store) == ["step-1", "step-10", "step-3"]
    store.save(11, tensors(11), {}, 11)
    assert steps(store) == ["step-1", "step-10", "step-11"]  # 10 still needs 1
    store.save(12, tensors(12), {}, 11)
    assert steps(store) == ["step-11", "step-12"]
    assert store.newest() == store.path(12)


def break_size(path):
    file = next(path.glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-1])


def break_byte(path):
    file = next(path.glob("*.distcp"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def break_file(path):
    (path / ".metadata").unlink()


def break_manifest(path):
    (path / "manifest.json").write_text("{")


def no_manifest(path):
    (path / "manifest.json").unlink()


@pytest.mark.parametrize(
    "damage, word",
    [
        (break_size, "bytes instead of"),
        (break_byte, "checksum"),
        (break_file, "missing"),
        (break_manifest, "can't be read"),
        (no_manifest, "no manifest"),
    ],
)
def test_damaged_is_passed_over_by_name(store, damage, word):
    store.save(1, tensors(1), {})
    store.save(2, tensors(2), {})
    damage(store.path(2))
    assert store.newest() == store.path(1)
    assert len(store.warnings) == 1
    assert str(store.path(2)) in store.warnings[0]
    assert word in store.warnings[0]
    # The run passes step 2 again and replaces it.
    store.save(2, tensors(5), {})
    assert store.newest() == store.path(2)


def test_all_damaged_is_an_error_and_an_interrupted_first_write_is_not(store):
    (store.folder / ".step-1.partial").mkdir(parents=True)
    assert store.newest() is None
    assert ".step-1.partial" in store.warnings[0]
    assert steps(store) == []
    store.save(1, tensors(1), {})
    break_byte(store.path(1))
    with pytest.raises(ConfigError, match=r"no checkpoint in .* is good.*--resume never"):
        store.newest()


def test_other_configuration_is_refused_by_key(store, processes):
    store.save(3, tensors(3), {})
    other = {"seed": 1, "gem": {"dim": 16, "events": [{"name": "a", "dim": 8}]}, "new": True}
    with pytest.raises(ConfigError) as error:
        checkpoint.CheckpointStore(store.folder, processes, other).newest()
    message = str(error.value)
    assert "\n" not in message
    for part in ("seed was 0, is 1", "gem.events.0.dim was 4, is 8", "new was 'absent', is True", "step-3"):
        assert part in message
    assert "gem.dim" not in message


def test_background_save_has_the_values_of_its_moment(store):
    store.background, target = True, tensors(1)
    store.save(1, target, {"at": 1})
    target["model"]["w"].fill_(99.0)
    store.finish()
    got = tensors(0)
    assert store.load(store.newest(), got) == {"at": 1}
    assert torch.equal(got["model"]["w"], tensors(1)["model"]["w"])


def test_background_save_is_completed_by_poll(store):
    store.background = True
    store.save(1, tensors(1), {})
    store._pending._thread.join()
    store.poll()
    assert steps(store) == ["step-1"]


def test_failed_write_leaves_no_checkpoint(store, monkeypatch):
    store.save(1, tensors(1), {})

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.dcp, "save", full)
    with pytest.raises(OSError, match="No space"):
        store.save(2, tensors(2), {})
    assert store.newest() == store.path(1)


def test_manifest_lists_each_file(store):
    store.save(4, tensors(4), {}, 4)
    manifest = json.loads((store.path(4) / "manifest.json").read_text())
    assert set(manifest["files"]) == {p.name for p in store.path(4).iterdir()} - {"manifest.json"}
    assert (manifest["step"], manifest["best_step"]) == (4, 4)
