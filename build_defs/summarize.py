"""Adds up what one `bazel test` run tested, cached results included.

    bazel test --build_event_json_file=events.json //...
    python3 build_defs/summarize.py events.json            prints 'N passed, N failed, N skipped'

The run's own event file says which targets it tested and where each test.xml lies; the bazel-testlogs
folder would also hold those of targets that have since been removed.
"""

import collections
import json
import sys
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree


def count_cases(xml_text: str) -> collections.Counter:
    """The test cases of one test.xml by outcome."""
    counts = collections.Counter()
    for case in ElementTree.fromstring(xml_text).iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            counts["failed"] += 1
        elif "skipped" in kinds:
            counts["skipped"] += 1
        else:
            counts["passed"] += 1
    return counts


def local_path(uri: str) -> str:
    return urllib.request.url2pathname(urllib.parse.urlparse(uri).path)


def failed_target(event: dict) -> str | None:
    """The target (or pattern) that an event calls failed."""
    key = event["id"]
    if "testSummary" in event:
        return None if event["testSummary"]["overallStatus"] in ("PASSED", "FLAKY") else key["testSummary"]["label"]
    if "targetCompleted" in key:
        return None if event.get("completed", {}).get("success") else key["targetCompleted"]["label"]
    if "aborted" in event and "pattern" in key:
        return " ".join(key["pattern"]["pattern"])
    return None  # an aborted label is the cause of a target's failure, which has its own event


def count_run(events: list[dict]) -> collections.Counter:
    """The test cases of a run by outcome.

    A target that Bazel calls failed counts as one failed case even where no test.xml of it does: it did not
    build, crashed before it wrote one, or ran out of time.
    """
    xml_files, bad = {}, set()
    for event in events:
        if "testResult" in event:
            key = event["id"]["testResult"]
            for output in event["testResult"].get("testActionOutput", []):
                if output["name"] == "test.xml":
                    # A later attempt of a flaky test takes the place of an earlier one.
                    xml_files[key["label"], key.get("run"), key.get("shard")] = local_path(output["uri"])
        elif target := failed_target(event):
            bad.add(target)
    counts = collections.Counter()
    for (label, *_), path in xml_files.items():
        with open(path, encoding="utf-8") as file:
            cases = count_cases(file.read())
        if cases["failed"]:
            bad.discard(label)
        counts += cases
    counts["failed"] += len(bad)
    return counts


def main(path: str) -> None:
    with open(path, encoding="utf-8") as file:
        counts = count_run([json.loads(line) for line in file])
    print(", ".join(f"{counts[kind]} {kind}" for kind in ("passed", "failed", "skipped")))


if __name__ == "__main__":
    main(*sys.argv[1:])
