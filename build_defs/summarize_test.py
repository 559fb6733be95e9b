import importlib.util
import json
import pathlib

_path = pathlib.Path(__file__).with_name("summarize.py")
_spec = importlib.util.spec_from_file_location("summarize", _path)
summarize = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(summarize)


def xml(path, passed=0, failed=0, errors=0, skipped=0):
    cases = "<testcase/>" * passed + "<testcase><failure/></testcase>" * failed
    cases += "<testcase><error/></testcase>" * errors + "<testcase><skipped/></testcase>" * skipped
    path.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    return path.as_uri()


def result(label, uri, shard=1, attempt=1):
    key = {"label": label, "run": 1, "shard": shard, "attempt": attempt}
    outputs = [{"name": "test.log", "uri": "file:///x"}, {"name": "test.xml", "uri": uri}]
    return {"id": {"testResult": key}, "testResult": {"testActionOutput": outputs}}


def summary(label, status):
    return {"id": {"testSummary": {"label": label}}, "testSummary": {"overallStatus": status}}


def completed(label, success=True):
    return {"id": {"targetCompleted": {"label": label}}, "completed": {"success": True} if success else {}}


def test_cases_of_all_shards_and_targets_add_up(tmp_path, capsys):
    events = [
        {"id": {"started": {}}, "started": {}},
        result("//a", xml(tmp_path / "a 1.xml", passed=3, skipped=1), shard=1),
        result("//a", xml(tmp_path / "a2.xml", passed=2), shard=2),
        result("//b", xml(tmp_path / "b.xml", failed=1, errors=2, passed=1)),
        completed("//a"),
        summary("//a", "PASSED"),
        summary("//b", "FAILED"),
    ]
    (tmp_path / "events.json").write_text("".join(json.dumps(e) + "\n" for e in events))
    summarize.main(tmp_path / "events.json")
    assert capsys.readouterr().out == "6 passed, 3 failed, 1 skipped\n"


def test_a_target_that_failed_without_a_failed_case_counts_once(tmp_path):
    events = [
        {"id": {"unconfiguredLabel": {"label": "//unbuilt:absent.py"}}, "aborted": {"reason": "ANALYSIS_FAILURE"}},
        completed("//unbuilt", success=False),
        summary("//unbuilt", "NO_STATUS"),
        result("//slow", xml(tmp_path / "slow.xml", passed=2)),
        summary("//slow", "TIMEOUT"),
    ]
    assert dict(summarize.count_run(events)) == {"passed": 2, "failed": 2}


def test_a_flaky_target_counts_its_last_attempt(tmp_path):
    events = [
        result("//f", xml(tmp_path / "1.xml", failed=1), attempt=1),
        result("//f", xml(tmp_path / "2.xml", passed=1), attempt=2),
        summary("//f", "FLAKY"),
    ]
    assert summarize.count_run(events)["failed"] == 0


def test_a_package_that_does_not_load_counts(tmp_path):
    events = [{"id": {"pattern": {"pattern": ["//..."]}}, "aborted": {"reason": "LOADING_FAILURE"}}]
    assert summarize.count_run(events)["failed"] == 1
