"""@pip for WORKSPACE mode: the locked packages, installed by pip into one folder.

Serves the labels that rules_python's pip.parse(hub_name = "pip") serves
(@pip//numpy, @pip//:requirements.bzl), and a Python toolchain whose
interpreter is a fresh venv without them: a target sees only the packages that
it and its deps name, as with the real rules_python.
"""

def _run(rctx, what, args, timeout = 3600):
    rctx.report_progress(what)
    result = rctx.execute(args, timeout = timeout, environment = {
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONHOME": "",
        "PYTHONNOUSERSITE": "1",
        "PYTHONPATH": "",
    })
    if result.return_code != 0:
        fail("%s failed (exit %d): %s\n%s\n%s" % (
            what,
            result.return_code,
            " ".join([str(a) for a in args]),
            result.stdout,
            result.stderr,
        ))
    return result.stdout

def _find_python(rctx):
    want = rctx.attr.python_version
    names = [rctx.os.environ.get("BAZEL_PYTHON", ""), "python" + want, "python3", "/usr/bin/python3"]
    seen = []
    for name in names:
        if not name:
            continue
        path = rctx.path(name) if name.startswith("/") else rctx.which(name)
        if not path or not path.exists:
            continue
        probe = rctx.execute([path, "-c", "import sys, ensurepip; print('%d.%d' % sys.version_info[:2])"])
        version = probe.stdout.strip() if probe.return_code == 0 else "no ensurepip"
        if version == want:
            return path
        seen.append("%s (%s)" % (path, version))
    fail("no Python %s with ensurepip found; tried: %s. Set BAZEL_PYTHON to one (Debian 12: apt-get install python3-venv)." % (
        want,
        ", ".join(seen),
    ))

def _pip_repository_impl(rctx):
    # rctx.path(Label) makes Bazel run this rule again when the file changes.
    lock = rctx.path(rctx.attr.requirements_lock)
    generate = rctx.path(rctx.attr._generate)
    complete_lock = rctx.path(rctx.attr._complete_lock)
    venv = rctx.path("venv")
    site = rctx.path("site-packages")
    _run(rctx, "making a venv", [_find_python(rctx), "-m", "venv", venv])
    python = venv.get_child("bin").get_child("python3")
    install = [
        python,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--no-input",
        "install",
        "--quiet",
        "--no-compile",  # compileall below uses every core
        "--target",
        site,
    ]
    rctx.file("lock.txt", "".join([
        line + "\n"
        for line in rctx.read(lock).split("\n")
        if not line.startswith("fbgemm-gpu")
    ]))
    _run(rctx, "installing %s" % rctx.attr.requirements_lock, install + ["--no-deps", "-r", "lock.txt"])

    # What depends on the build of torch that pip chose, CPU or CUDA.
    rctx.file("deps.txt", _run(rctx, "reading torch's requirements", [python, complete_lock, "deps", site, "torch"]))
    _run(rctx, "installing torch's requirements", install + ["-c", lock, "-r", "deps.txt"])
    fbgemm = _run(rctx, "choosing an fbgemm", [python, complete_lock, "fbgemm", site, lock])
    _run(rctx, "installing %s" % fbgemm, install + ["--no-deps", fbgemm])

    # Some packages ship templates or old sources that don't compile: not an error.
    rctx.report_progress("compiling")
    rctx.execute([python, "-m", "compileall", "-q", "-j", "0", site], timeout = 3600)
    _run(rctx, "writing BUILD files", [python, generate, rctx.path("."), rctx.attr.name, lock])

pip_repository = repository_rule(
    implementation = _pip_repository_impl,
    attrs = {
        "python_version": attr.string(mandatory = True),
        "requirements_lock": attr.label(allow_single_file = True, mandatory = True),
        "_complete_lock": attr.label(default = "//build_defs/offline:complete_lock.py"),
        "_generate": attr.label(default = "//build_defs/offline:generate_build.py"),
    },
    environ = ["BAZEL_PYTHON"],
)
