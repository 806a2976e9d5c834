"""Values for the specs of simulated datasets."""

from __future__ import annotations

from typing import Any, Final

SCHEDULES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"schedule": "* * * * *"},
    {"schedule": "*/10 * * * *"},
    {"schedule": "0 * * * *", "startingDeadlineSeconds": 600},
    {"schedule": "*/10 * * * *", "suspend": True},
)
POD_FIELDS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"annotations": {"team": "travel"}},
    {"nodeSelector": {"disk": "ssd"}, "priorityClassName": "serving"},
)
DELIVERIES: Final[tuple[dict[str, Any], ...]] = (
    {"type": "Fetch"},
    {"type": "Volume", "volume": {"claimName": "lookups"}},
    {"type": "Image", "image": {"repository": "r.example/lookups"}},
    {"type": "Image", "image": {"repository": "r.example/others", "pushSecretName": "push"}},
)
