import importlib.util
import pathlib

import pytest

_path = pathlib.Path(__file__).with_name("complete_lock.py")
_spec = importlib.util.spec_from_file_location("complete_lock", _path)
complete_lock = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(complete_lock)


def install(site, name, *requires):
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {r}" for r in requires)]
    (folder / "METADATA").write_text("\n".join(lines) + "\n")


def test_only_what_is_absent_and_applies_is_asked_for(tmp_path):
    install(
        tmp_path,
        "torch",
        "nvidia-cudnn-cu13==9.20; platform_system == 'Linux' or platform_system != 'Linux'",
        "cuda-toolkit[cublas,cudart]==13.0",
        "Typing_Extensions>=4",
        "nvidia-windows; sys_platform == 'nowhere'",
        "optree; extra == 'optree'",
    )
    install(tmp_path, "typing-extensions")
    install(tmp_path, "torchrec", "fbgemm-gpu")
    assert complete_lock.deps(tmp_path, "torch") == ["nvidia-cudnn-cu13==9.20", "cuda-toolkit[cublas,cudart]==13.0"]


def test_nothing_missing(tmp_path):
    install(tmp_path, "torch", "sympy>=1")
    install(tmp_path, "sympy")
    assert complete_lock.deps(tmp_path, "torch") == []


@pytest.mark.parametrize(
    ("cuda", "driver", "build"),
    [
        ("'13.0'", True, "fbgemm-gpu"),
        ("'13.0'", False, "fbgemm-gpu-cpu"),
        ("None", True, "fbgemm-gpu-cpu"),
        ("None", False, "fbgemm-gpu-cpu"),
    ],
)
def test_the_build_of_fbgemm(tmp_path, monkeypatch, cuda, driver, build):
    (tmp_path / "torch").mkdir()
    version = f"__version__ = '2.13.0'\ndebug = False\ncuda: Optional[str] = {cuda}\ngit_version = 'x'\n"
    (tmp_path / "torch" / "version.py").write_text(version)
    lock = tmp_path / "lock.txt"
    lock.write_text("filelock==1.0\nfbgemm-gpu-cpu==1.8.0\ntorch==2.13.0\n")
    monkeypatch.setattr(complete_lock, "DRIVER", tmp_path if driver else tmp_path / "absent")
    assert complete_lock.fbgemm(tmp_path, lock) == [f"{build}==1.8.0"]
