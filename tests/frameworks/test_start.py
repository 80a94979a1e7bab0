"""The start of Python with the hook's folder in front of PYTHONPATH, without any framework."""

import os
import shutil

import pytest
from listener import environment, run

MODULES = "import sys; print(sorted(sys.modules)); print(sys.path)"


def user(tmp_path, name, text):
    folder = tmp_path / "user"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(text)
    return str(folder)


def test_imports_little(listener):
    ran, without = listener.run(MODULES), run(MODULES)
    more = set(eval(ran.out.splitlines()[0])) - set(eval(without.stdout.splitlines()[0]))
    light = {"importlib", "importlib._bootstrap", "importlib._bootstrap_external", "warnings"}
    assert more - light == {"sitecustomize", "wattune_hook"}, more
    assert (ran.code, ran.err, ran.messages) == (0, "", [])


def test_without_the_socket(listener):
    variables = listener.variables()
    del variables["WATTUNE_PROGRESS_SOCKET"]
    ran = run(MODULES, variables=variables)
    assert ran.returncode == 0 and "'sitecustomize'" in ran.stdout and "wattune_hook" not in ran.stdout.splitlines()[0]


@pytest.mark.parametrize(
    ("of_run", "job", "environment_of_job", "is_installed"),
    [("7", "7", "BATCH", True), ("7", "8", "BATCH", False), ("", "8", "", True), ("", "8", "BATCH", False)],
)
def test_in_a_slurm_job(listener, of_run, job, environment_of_job, is_installed):
    """A job that the command has submitted with `sbatch` is no part of the command; what it starts with `srun` is."""
    posts = {"KUBEFLOW_TRAINER_SERVER_URL": "http://a", "KUBEFLOW_TRAINER_SERVER_TOKEN": str(listener.path.parent / "token")}
    slurm = {"WATTUNE_RUN_SLURM_JOB": of_run, "SLURM_JOB_ID": job, "ENVIRONMENT": environment_of_job}
    text = (
        "import os, sys, wattune_hook\nfrom wattune_hook.factories import lightning\n"
        "print(any(type(finder).__name__ == '_Finder' for finder in sys.meta_path), wattune_hook.progress_socket() is not None,"
        " 'KUBEFLOW_TRAINER_SERVER_URL' in os.environ, 'KUBEFLOW_TRAINER_SERVER_TOKEN' in os.environ, lightning() == [])"
    )
    ran = listener.run(text, **slurm, **posts)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.split()[:4] == [str(is_installed)] * 4
    other = {**posts, "KUBEFLOW_TRAINER_SERVER_TOKEN": "/var/run/token"}
    assert listener.run(text, **slurm, **other).out.split()[2:4] == ["True", "True"], "a server of the job itself"


def test_users_own_files(listener, tmp_path):
    """The user's files see the path that they would see without wattune, and are the modules that a script finds."""
    folder = user(tmp_path, "sitecustomize", "import sys\nprint('own', sys.path)\nvalue = 5\n")
    text = "import sitecustomize; print(sitecustomize.value, sitecustomize.__file__)"
    without = run(text, variables=environment(PYTHONPATH=folder))
    ran = listener.run(text, PYTHONPATH=folder)
    assert (ran.code, ran.out, ran.err) == (0, without.stdout, "") and "own" in ran.out and "5 " in ran.out


def test_folder_stays_in_the_path(listener):
    """Lightning looks for entry points there, and child processes for the hook."""
    assert str(listener.hooks) in listener.run(MODULES).out.splitlines()[1]


@pytest.mark.parametrize("text", ["1 / 0", "import no_such_module", "import sys; sys.exit(3)"])
def test_errors_of_the_users_file(listener, tmp_path, text):
    """Python reports them as it does without wattune, and goes on or ends as it does."""
    folder = user(tmp_path, "sitecustomize", text)
    without = run("print('ran')", variables=environment(PYTHONPATH=folder))
    ran = listener.run("print('ran')", PYTHONPATH=folder)
    assert (ran.code, ran.out) == (without.returncode, without.stdout)
    assert ran.err.splitlines()[:2] == without.stderr.splitlines()[:2]


def test_a_chain_of_wrappers(listener, tmp_path):
    """Another wrapper whose sitecustomize imports the next one, as ours does, and a second folder of our own."""
    shutil.copytree(listener.hooks, tmp_path / "second" / "hooks")
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text(
        "import os, sys\nprint('other')\nsys.path.remove(os.path.dirname(__file__))\n"
        "sys.modules.pop('sitecustomize')\nimport sitecustomize\n"
    )
    folder = user(tmp_path, "sitecustomize", "print('own')")
    path = os.pathsep.join([str(tmp_path / "second" / "hooks"), str(other), folder])
    ran = listener.run("print('ran')", PYTHONPATH=path)
    assert (ran.code, ran.out, ran.err) == (0, "other\nown\nran\n", "")


@pytest.mark.parametrize("flags", [["-S"], ["-I"], ["-E"]])
def test_flags_that_leave_the_hook_out(listener, flags):
    text = "import sys; print('wattune_hook' in sys.modules, 'ran')"
    ran = listener.run(text, flags=flags)
    assert (ran.code, ran.out, ran.err, ran.messages) == (0, "False ran\n", "", [])


def test_a_framework_that_fails_to_load(listener, tmp_path):
    """The script gets the error that it would get, and the finder is no part of it."""
    folder = tmp_path / "broken" / "torch" / "optim"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    (folder / "__init__.py").write_text("")
    (folder / "optimizer.py").write_text("raise RuntimeError('no driver')")
    text = "import torch.optim.optimizer"
    ran = listener.run(text, PYTHONPATH=str(folder.parents[1]))
    assert ran.code == 1 and "RuntimeError: no driver" in ran.err and ran.messages == []
    (folder / "optimizer.py").write_text("value = 1")
    ran = listener.run(text + "; print(torch.optim.optimizer.value)", PYTHONPATH=str(folder.parents[1]))
    assert (ran.code, ran.out, ran.err) == (0, "1\n", ""), "a torch without hooks is left alone"
