import dataclasses
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faceter.tools.doctor.diagnosis import can_train, diagnose, fbgemm_variant, install_set, usable
from faceter.tools.doctor.facts import PACKAGES, Facts, Gpu
from faceter.tools.doctor.matrix import MATRIX, fit_for, minor

H200 = Gpu("H200", (9, 0), 139.8)
A100 = Gpu("A100", (8, 0), 79.2)

CPU = Facts(
    python="3.11.7",
    packages={
        "torch": "2.13.0+cpu",
        "triton": "3.7.1",
        "torchrec": "1.8.0",
        "fbgemm-gpu-cpu": "1.8.0",
        "torchmetrics": "1.0.3",
        "tensordict": "0.15.3",
        "pyre-extensions": "0.0.32",
        "tqdm": "4.70.1",
        "numpy": "2.4.6",
        "pyarrow": "26.0.1",
    },
    backends=("gloo",),
)


def replaced(facts, drop=(), **packages):
    """``facts`` with packages dropped and versions set (names with _ for -)."""
    kept = {name: version for name, version in facts.packages.items() if name not in drop}
    return dataclasses.replace(facts, packages={**kept, **{n.replace("_", "-"): v for n, v in packages.items()}})


GPU = dataclasses.replace(
    replaced(CPU, drop=["fbgemm-gpu-cpu"], torch="2.13.0", fbgemm_gpu="1.8.0"),
    cuda="13.0",
    gpus=(H200,),
    backends=("gloo", "nccl"),
    driver="580.95",
)


def only(facts):
    (problem,) = diagnose(facts)
    return problem


@pytest.mark.parametrize("facts", [CPU, GPU])
def test_a_good_set_has_no_problem(facts):
    assert diagnose(facts) == []
    assert can_train(facts)


@pytest.mark.parametrize("fit", MATRIX, ids=lambda fit: fit.torch)
def test_every_row_of_the_matrix_is_a_good_set(fit):
    facts = replaced(
        CPU,
        torch=f"{fit.torch}.1",
        triton=f"{fit.triton}.0",
        torchrec=f"{fit.fbgemm}.2",
        fbgemm_gpu_cpu=f"{fit.fbgemm}.0",
        numpy="2.3.0",
    )
    assert diagnose(facts) == []


@given(st.sampled_from(MATRIX), st.sampled_from(MATRIX), st.sampled_from(MATRIX))
def test_any_other_pairing_is_named_with_the_release_that_fits(torch, fbgemm, torchrec):
    facts = replaced(
        CPU,
        torch=f"{torch.torch}.0",
        triton=f"{torch.triton}.0",
        fbgemm_gpu_cpu=f"{fbgemm.fbgemm}.0",
        torchrec=f"{torchrec.fbgemm}.0",
        numpy="2.3.0",
    )
    problems = diagnose(facts)
    assert bool(problems) == (not torch == fbgemm == torchrec)
    for problem in problems:
        assert f"fbgemm-gpu-cpu=={torch.fbgemm}.*" in problem.fix
        assert f'--no-deps "torchrec=={torch.fbgemm}.*"' in problem.fix
    text = "; ".join(problem.what for problem in problems)
    assert ("fbgemm-gpu-cpu" in text) == (torch != fbgemm)
    assert ("torchrec" in text) == (torch != torchrec)


def test_missing_torch_brings_the_whole_set():
    problem = only(replaced(CPU, drop=["torch", "torchrec", "fbgemm-gpu-cpu", "triton"]))
    assert problem.what == "torch is not installed"
    assert "torch==2.13.*" in problem.fix
    assert "torchrec==1.8.*" in problem.fix


def test_missing_fbgemm_and_torchrec_are_one_problem_with_one_command():
    problem = only(replaced(CPU, drop=["torchrec", "fbgemm-gpu-cpu"]))
    assert problem.what == "fbgemm is not installed; torchrec is not installed"
    assert problem.fix == install_set(CPU, "1.8")


def test_what_pip_makes_of_torchrec_alone_on_a_cpu():
    # pip install torchrec==1.8.0 brings the newest CUDA fbgemm.
    facts = replaced(CPU, drop=["fbgemm-gpu-cpu"], fbgemm_gpu="1.9.0")
    problem = only(dataclasses.replace(facts, broken={"fbgemm": "undefined symbol: x"}))
    assert "fbgemm-gpu 1.9.0 is not built for torch 2.13.0+cpu" in problem.what
    assert problem.fix.startswith("pip uninstall -y fbgemm-gpu && pip install")
    assert not can_train(dataclasses.replace(facts, broken={"fbgemm": "undefined symbol: x"}))


def test_both_builds_at_once():
    problem = only(replaced(CPU, fbgemm_gpu="1.8.0"))
    assert "both" in problem.what
    assert problem.fix.startswith("pip uninstall -y fbgemm-gpu fbgemm-gpu-cpu && ")


def test_unknown_torch_names_the_known_ones():
    problem = only(replaced(CPU, torch="2.9.1"))
    for fit in MATRIX:
        assert fit.torch in problem.what
    assert "torch==2.13.*" in problem.fix


def test_right_version_that_does_not_load_is_reinstalled():
    facts = dataclasses.replace(CPU, broken={"fbgemm": "fbgemm.so: undefined symbol: x", "torchrec": "same"})
    problem = only(facts)
    assert "undefined symbol: x" in problem.what
    assert "--force-reinstall" in problem.fix
    assert usable(facts)["train on CPU"] == (False, "fbgemm does not load")


def test_broken_torch_hides_what_depends_on_it():
    problem = only(dataclasses.replace(CPU, broken={"torch": "libcudart.so.13: cannot open shared object file"}))
    assert "libcudart" in problem.what
    assert 'torch==2.13.*"' in problem.fix


@pytest.mark.parametrize("name", ["tensordict", "pyre-extensions", "tqdm", "torchmetrics"])
def test_what_torchrec_needs(name):
    problem = only(replaced(CPU, drop=[name]))
    assert problem.fix.startswith(f"pip install {name}")


def test_wrong_torchmetrics():
    assert only(replaced(CPU, torchmetrics="1.8.0")).fix == "pip install torchmetrics==1.0.3"


@pytest.mark.parametrize("name", ["numpy", "pyarrow"])
def test_missing_reader_packages_stop_training(name):
    facts = replaced(CPU, drop=[name])
    assert only(facts).fix == f"pip install {name}"
    assert not can_train(facts)


def test_missing_triton_matters_on_a_gpu_only():
    assert diagnose(replaced(CPU, drop=["triton"])) == []
    assert only(replaced(GPU, drop=["triton"])).fix == 'pip install "triton==3.7.*"'


def test_triton_of_another_torch():
    assert only(replaced(CPU, triton="3.6.0", numpy="2.3.0")).fix == 'pip install "triton==3.7.*"'


@pytest.mark.parametrize(("numpy", "bad"), [("2.3.5", False), ("2.4.0", True), ("2.10.0", True), ("1.26.4", False)])
def test_old_triton_interpreter_and_new_numpy(numpy, bad):
    old = replaced(CPU, torch="2.11.0", triton="3.6.0", torchrec="1.6.1", fbgemm_gpu_cpu="1.6.0", numpy=numpy)
    assert [p.fix for p in diagnose(old)] == (['pip install "numpy<2.4"'] if bad else [])


def test_a_gpu_and_a_cpu_torch():
    facts = dataclasses.replace(CPU, driver="580.95")
    assert "CPU build" in only(facts).what
    assert usable(facts)["train on GPU"] == (False, "torch is a CPU build")
    assert can_train(facts)


def test_a_driver_too_old_for_torch():
    problem = only(dataclasses.replace(GPU, gpus=()))
    assert "sees no GPU with driver 580.95" in problem.what


def test_cpu_fbgemm_on_a_gpu_machine_trains_on_cpu_only():
    facts = replaced(GPU, drop=["fbgemm-gpu"], fbgemm_gpu_cpu="1.8.0")
    problem = only(facts)
    assert problem.fix.startswith('pip uninstall -y fbgemm-gpu-cpu && pip install "fbgemm-gpu==1.8.*"')
    assert usable(facts)["train on CPU"].ok
    assert not usable(facts)["train on GPU"].ok


def test_cuda_torch_without_a_driver_takes_the_cpu_fbgemm():
    facts = dataclasses.replace(replaced(CPU, torch="2.13.0"), cuda="13.0")
    assert diagnose(facts) == []
    assert usable(facts)["train on GPU"] == (False, "no GPU")


@pytest.mark.parametrize(
    ("gpu", "hopper", "fp8"),
    [
        (A100, False, False),
        (H200, True, True),
        (Gpu("L4", (8, 9), 22.0), False, True),
        (Gpu("B200", (10, 0), 178.0), False, True),
    ],
)
def test_what_each_architecture_can_run(gpu, hopper, fp8):
    verdicts = usable(dataclasses.replace(GPU, gpus=(gpu,)))
    assert verdicts["train on GPU"].ok
    assert verdicts["Triton kernels"] == (True, gpu.arch)
    assert verdicts["Hopper kernels"].ok == hopper
    assert verdicts["fp8"].ok == fp8


@pytest.mark.parametrize(("compiler", "headers"), [(False, True), (True, False), (False, False)])
def test_triton_needs_a_compiler_on_a_gpu(compiler, headers):
    facts = dataclasses.replace(GPU, compiler=compiler, python_headers=headers)
    assert "python3-dev" in only(facts).fix
    verdicts = usable(facts)
    assert not any(verdicts[name].ok for name in ("Triton kernels", "Hopper kernels", "fp8"))
    assert verdicts["train on GPU"].ok
    # Without a GPU the interpreter runs the kernels: nothing is compiled.
    assert diagnose(dataclasses.replace(CPU, compiler=compiler, python_headers=headers)) == []


VERSION = st.builds("{}.{}.{}".format, st.integers(0, 3), st.integers(0, 15), st.integers(0, 3))


@given(
    st.dictionaries(st.sampled_from(PACKAGES), VERSION),
    st.sampled_from([None, "12.8", "13.0"]),
    st.lists(st.sampled_from([A100, H200]), max_size=2),
    st.none() | st.just("580.95"),
    st.dictionaries(st.sampled_from(["torch", "fbgemm", "torchrec"]), st.just("error")),
)
def test_whatever_is_installed_an_untrainable_machine_is_told_what_to_type(packages, cuda, gpus, driver, broken):
    broken = {k: v for k, v in broken.items() if k in packages or (k == "fbgemm" and "fbgemm-gpu" in packages)}
    facts = Facts("3.11.7", packages, cuda, tuple(gpus) if cuda else (), ("gloo",), driver, broken=broken)
    problems = diagnose(facts)
    assert can_train(facts) or problems
    for problem in problems:
        assert problem.what
        assert shlex.split(problem.fix)
    assert (fbgemm_variant(facts) is None) == (not packages.keys() & {"fbgemm-gpu", "fbgemm-gpu-cpu"})


@pytest.mark.parametrize("text", ["2.13.0+cpu", "2.13", "2.13.0a0+git1", "2.13.0.dev20260101"])
def test_minor(text):
    assert minor(text) == "2.13"
    assert fit_for(text).fbgemm == "1.8"


def test_minor_of_no_version():
    with pytest.raises(ValueError, match="unknown"):
        minor("unknown")
