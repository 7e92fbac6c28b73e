"""Versions and the commit of the source."""

import shutil
import subprocess

from rheobase.io import environment, find_commit, package_versions


def test_the_environment_names_the_versions():
    versions = package_versions()
    assert versions.keys() >= {"python", "torch", "numpy", "rheobase"}
    assert all(isinstance(version, str) and version for version in versions.values())


def test_the_commit_comes_from_the_caller_the_environment_or_git(monkeypatch):
    monkeypatch.setenv("RHEOBASE_COMMIT", "from-environment")
    assert find_commit("given") == "given"
    assert find_commit() == "from-environment"
    monkeypatch.delenv("RHEOBASE_COMMIT")
    answers = {"ls-files": "records.py", "rev-parse": "0123abc", "status": ""}
    monkeypatch.setattr(environment, "_git", lambda folder, word, *_: answers[word])
    assert find_commit() == "0123abc"
    answers["status"] = " M src/rheobase/records.py"
    assert find_commit() == "0123abc-modified"


def test_the_commit_of_somebody_elses_repository_is_not_ours(tmp_path, monkeypatch):
    monkeypatch.delenv("RHEOBASE_COMMIT", raising=False)
    copy = tmp_path / "records.py"
    shutil.copy(environment.__file__, copy)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    monkeypatch.setattr(environment, "__file__", str(copy))
    assert find_commit() == "unknown"


def test_without_git_the_commit_is_unknown(monkeypatch):
    monkeypatch.delenv("RHEOBASE_COMMIT", raising=False)
    monkeypatch.setenv("PATH", "")
    assert find_commit() == "unknown"
