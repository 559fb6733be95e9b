import importlib.util
import pathlib

_path = pathlib.Path(__file__).with_name("missing_requirements.py")
_spec = importlib.util.spec_from_file_location("missing_requirements", _path)
missing_requirements = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(missing_requirements)


def install(site, name, *requires):
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {r}" for r in requires)]
    (folder / "METADATA").write_text("\n".join(lines) + "\n")


def test_only_what_is_absent_and_applies_is_printed(tmp_path, capsys):
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
    missing_requirements.main(str(tmp_path), "torch")
    assert capsys.readouterr().out.split("\n") == ["nvidia-cudnn-cu13==9.20", "cuda-toolkit[cublas,cudart]==13.0"]


def test_nothing_missing_prints_nothing(tmp_path, capsys):
    install(tmp_path, "torch", "sympy>=1")
    install(tmp_path, "sympy")
    missing_requirements.main(str(tmp_path), "torch")
    assert capsys.readouterr().out == ""
