"""How far a Job of the plugin is, by what its cluster says of it: its conditions, its pod, and events where neither
has a word. Pure. Each obstacle is told in the sentence that the operator has for it (``parse.causes``).

is told by            what
events of the Job     it may not make its pod: quota, admission, what its pod names is missing
conditions            it is suspended, has failed, took too long
the pod's status      no node takes it, its image, memory, eviction, a lost node
events of the pod     volumes and network, before its image is asked for
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from lookupdb_operator import names
from lookupdb_operator.model import Trouble
from lookupdb_operator.parse import awaits_images, diagnose_pod, diagnose_warning
from lookupdb_operator.plan import reasons

Body = Mapping[str, Any]

_POD_ENDED: Final = "BackoffLimitExceeded"
"""Of a Job: its pod failed, which is not why."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a Job is that has one pod."""

    phase: Literal["Starting", "Running", "Succeeded", "Failed"]
    pod: str = ""
    """Whose log says more; empty for none."""
    why: str = ""
    """What it waits for, or why it failed; empty when only its log can tell."""


def judge_job(job: Body, pod: Body | None, warnings: Iterable[Body], component: str = names.DIFF) -> JobProgress:
    """How far ``job`` is, whose container is called as its ``component``; ``warnings`` are events about its pod, or
    about the Job itself while it has none."""
    name = job["metadata"]["name"]
    failed = _find_condition(job, "Failed")
    if pod is not None and (ended := _judge_ended_pod(pod, component)) is not None:
        return ended
    if failed:
        return JobProgress("Failed", why=_describe_failure(name, job, failed))
    if pod is not None:
        return _judge_pod(pod, warnings, component)
    if _find_condition(job, "Suspended"):
        return JobProgress("Starting", why=f"Job {name} is suspended: somebody has to resume it")
    trouble = _diagnose_warnings("Job", name, warnings, component)
    return JobProgress("Starting", why=f"Job {name} has no pod yet" if trouble is None else trouble.message)


def _judge_ended_pod(pod: Body, component: str) -> JobProgress | None:
    """What a pod that has ended comes to. That a container ended by itself is told better by its log."""
    name, phase = pod["metadata"]["name"], _phase(pod)
    if phase == "Succeeded":
        return JobProgress("Succeeded", name)
    if phase != "Failed":
        return None
    trouble = diagnose_pod(pod, component, None)
    is_by_itself = trouble is None or trouble.reason == reasons.CRASH_LOOPING
    return JobProgress("Failed", name, "" if trouble is None or is_by_itself else trouble.message)


def _judge_pod(pod: Body, warnings: Iterable[Body], component: str) -> JobProgress:
    name = pod["metadata"]["name"]
    if _phase(pod) == "Running":
        return JobProgress("Running", name, f"pod {name} runs")
    trouble = diagnose_pod(pod, component, None)
    if trouble is None and awaits_images(pod):
        trouble = _diagnose_warnings("Pod", name, warnings, component)
    return JobProgress("Starting", name, f"pod {name} has not started yet" if trouble is None else trouble.message)


def _describe_failure(name: str, job: Body, condition: Body) -> str:
    if condition.get("reason") == reasons.DEADLINE_EXCEEDED:
        seconds = (job.get("spec") or {}).get("activeDeadlineSeconds")
        return f"Job {name} took longer than {seconds} seconds and was ended; raise --timeout"
    if condition.get("reason") == _POD_ENDED:
        return f"the pod of Job {name} failed, and is gone"
    return f"Job {name} failed: {condition.get('message') or condition.get('reason') or 'it does not say why'}"


def _diagnose_warnings(kind: str, name: str, warnings: Iterable[Body], component: str) -> Trouble | None:
    """What the newest of ``warnings`` says, of those that say anything."""

    def diagnose(event: Body) -> Trouble | None:
        reason, message = str(event.get("reason") or ""), str(event.get("message") or "")
        return diagnose_warning(kind, name, reason, message, component=component)

    newest_first = sorted(warnings, key=lambda event: str(event.get("lastTimestamp") or ""), reverse=True)
    return next((trouble for event in newest_first if (trouble := diagnose(event)) is not None), None)


def _phase(pod: Body) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def _find_condition(job: Body, kind: str) -> Body | None:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return next((found for found in conditions if found.get("type") == kind and found.get("status") == "True"), None)
