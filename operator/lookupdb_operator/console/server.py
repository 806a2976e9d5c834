"""The HTTP server of the console. It only reads. Pages hold no script or style of their own, and load nothing from
elsewhere: the policy below forbids both, so text from a dataset can do no harm even if it were not escaped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
from aiohttp import web
from jinja2 import Environment

from lookupdb_operator.console import facts, pages
from lookupdb_operator.console.dataset import AbsentKey, DatasetPods, FoundKey, UnavailableKey
from lookupdb_operator.console.source import ConsoleSource, Elsewhere
from lookupdb_operator.console.watch import Watch

log = logging.getLogger(__name__)

SOURCE: Final = web.RequestKey("source", ConsoleSource)
"""The datasets that the visitor may see. A middleware sets it."""
ACCOUNT: Final = web.RequestKey("account", str)
"""The name of the reader, if there was a login."""
_WATCH: Final = web.AppKey("watch", Watch)
_TEMPLATES: Final = web.AppKey("templates", Environment)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Middleware = Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]

POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
"""The names by which this machine reaches itself."""
STATIC: Final = "/static/"
"""The path of the style, the script and the icon."""
MAX_BODY_BYTES: Final = 16 << 10
REQUEST_SECONDS: Final = 50.0
_FORM: Final = "application/x-www-form-urlencoded"


def make_app(
    watch: Watch,
    *,
    middlewares: Sequence[Middleware] = (),
    routes: Iterable[web.RouteDef] = (),
    hosts: Collection[str] | None = None,
) -> web.Application:
    """Return the console. One of ``middlewares`` sets ``SOURCE``. ``hosts`` are the host names that requests may use,
    so that pages of other sites cannot read the console (DNS rebinding); None: any."""
    app = web.Application(
        middlewares=[_protect, _make_host_check(hosts), _refuse_other_sites, *middlewares],  # type: ignore[list-item]
        client_max_size=MAX_BODY_BYTES,
    )
    app[_WATCH] = watch
    app[_TEMPLATES] = pages.make_environment()
    dataset = r"/datasets/{namespace:[a-z0-9-]{1,63}}/{name:[a-z0-9.-]{1,253}}"
    app.add_routes(
        [
            web.get("/", show_fleet),
            web.get("/live.json", report_fleet),
            web.get(dataset, show_dataset),
            web.get(f"{dataset}/live.json", report_dataset),
            web.get(f"{dataset}/lookup", look_up),
            web.post(f"{dataset}/lookup", look_up),
            web.get(f"{dataset}/diff", compare),
            web.post(f"{dataset}/diff", compare),
            *(web.get(STATIC + path.name, partial(_send, path)) for path in (pages.FOLDER / "static").iterdir()),
            *routes,
        ]
    )
    return app


def set_source(source: ConsoleSource) -> Middleware:
    """Return the middleware that lets every visitor see all of ``source``."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[SOURCE] = source
        return await handler(request)

    return middleware


# Middlewares, and helpers of handlers.


@web.middleware
async def _protect(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Add the headers, bound the time, and show errors as pages."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            response = await handler(request)
    except web.HTTPException as error:
        response = show_error(request, error.status, error.text or error.reason)
        response.headers.update({name: value for name, value in error.headers.items() if name == "Allow"})
    except TimeoutError:
        response = show_error(request, 504, f"There was no answer within {REQUEST_SECONDS:g} seconds.")
    except Exception:
        log.exception("a page failed", extra={"path": request.path})
        response = show_error(request, 500, "The console has a bug. Its log says more.")
    for name, value in _HEADERS.items():
        response.headers[name] = value
    is_file = request.path.startswith(STATIC) and response.status < 400
    response.headers["Cache-Control"] = "max-age=300" if is_file else "no-store"
    return response


def _make_host_check(hosts: Collection[str] | None) -> Middleware:
    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            name = urlsplit(f"//{request.headers.get('Host', '')}").hostname or ""
        except ValueError:
            name = ""
        if hosts is not None and name not in hosts:
            raise web.HTTPMisdirectedRequest(text=f"This console is at {' or '.join(sorted(hosts))} only.")
        return await handler(request)

    return middleware


@web.middleware
async def _refuse_other_sites(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse a form that another site has sent."""
    if request.method in ("GET", "HEAD"):
        return await handler(request)
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    is_ours = origin is None or origin.partition("://")[2] == request.headers.get("Host")
    if (site not in ("same-origin", "none")) if site is not None else not is_ours:
        raise web.HTTPForbidden(text="This form can only be sent from the console itself.")
    return await handler(request)


async def read_form(request: web.Request) -> Mapping[str, object]:
    """Return the fields of the posted form; none for GET. Raises HTTPException if there is no form that can be read."""
    if request.method == "POST" and request.content_type != _FORM:
        raise web.HTTPUnsupportedMediaType(text=f"Send the form as {_FORM}.")
    try:
        return await request.post()
    except (LookupError, ValueError) as error:  # its charset is unknown, or does not fit its bytes
        raise web.HTTPBadRequest(text="The form cannot be read.") from error


def render(request: web.Request, template: str, *, status: int = 200, **values: Any) -> web.Response:
    """Return a page."""
    text = (
        request.app[_TEMPLATES]
        .get_template(template)
        .render(now=datetime.now(UTC), account=request.get(ACCOUNT), path=request.path, **values)
    )
    return web.Response(text=text, status=status, content_type="text/html")


def show_error(request: web.Request, status: int, text: str) -> web.Response:
    """Return the page of an error."""
    return render(request, "error.html", status=status, title=HTTPStatus(status).phrase, text=text)


async def _send(path: Path, _request: web.Request) -> web.FileResponse:
    return web.FileResponse(path)


def _json(document: Any) -> web.Response:
    return web.Response(body=orjson.dumps(document), content_type="application/json")


# The pages.


async def show_fleet(request: web.Request) -> web.Response:
    """Show the list of all datasets."""
    fleet = pages.describe_fleet(request[SOURCE].list_datasets(), request.app[_WATCH], request.query)
    return render(request, "fleet.html", fleet=fleet)


async def report_fleet(request: web.Request) -> web.Response:
    """Return the list as JSON."""
    fleet = pages.describe_fleet(request[SOURCE].list_datasets(), request.app[_WATCH], request.query)
    return _json([asdict(entry.row) | asdict(entry.rates) for entry in fleet.entries])


def _find_dataset(request: web.Request) -> DatasetPods:
    """Return the dataset in the path. Raises HTTPNotFound."""
    namespace, name = request.match_info["namespace"], request.match_info["name"]
    found = request[SOURCE].find_dataset(namespace, name)
    if found is None:
        raise web.HTTPNotFound(text=f"There is no dataset {namespace}/{name}.")
    request.app[_WATCH].show(namespace, name)
    return found


async def show_dataset(request: web.Request) -> web.Response:
    """Show one dataset."""
    view, watch = _find_dataset(request), request.app[_WATCH]
    found = facts.describe_dataset(view)
    return render(
        request,
        "dataset.html",
        facts=found,
        rates=watch.rates(found.row.namespace, found.row.name),
        charts=pages.draw_charts(watch.history(found.row.namespace, found.row.name)),
        servers={rollout.rollout: list(pages.list_servers(rollout.shards, watch)) for rollout in found.rollouts},
        troubles=facts.list_troubles([pod for pod in view.pods if not pod.ready]),
        actions=list(facts.list_actions(view.dataset, found)),
        served=pages.list_served(view.dataset),
        split=partial(facts.split_lines, view.dataset),
    )


async def report_dataset(request: web.Request) -> web.Response:
    """Return the figures of one dataset and their history as JSON."""
    view, watch = _find_dataset(request), request.app[_WATCH]
    row = facts.describe_row(view.dataset)
    points = [asdict(point) for point in watch.history(row.namespace, row.name)]
    return _json(asdict(row) | asdict(watch.rates(row.namespace, row.name)) | {"history": points})


_KINDS: Final = {FoundKey: "found", AbsentKey: "missing", UnavailableKey: "unavailable", Elsewhere: "elsewhere"}
"""Answer → its part of the template."""


async def look_up(request: web.Request) -> web.Response:
    """Show the lookup box, and the answer if a key was sent."""
    dataset, form = _find_dataset(request).dataset, await read_form(request)
    key, generation, served = str(form.get("key", "")), str(form.get("generation", "")), pages.list_served(dataset)
    began, kind, answer, shard, text, is_whole = time.perf_counter(), "", None, None, "", True
    if request.method == "POST":
        if generation in ("", *served):
            answer = await request[SOURCE].look_up(dataset, key, generation or None)
        else:
            answer = Elsewhere(f"{generation} is not served.")
        kind = _KINDS[type(answer)]
    microseconds = (time.perf_counter() - began) * 1e6
    if isinstance(answer, FoundKey):
        shard = pages.find_shard(dataset, answer)
        text, is_whole = pages.show_value(answer.value, is_json=answer.is_json)
    return render(
        request,
        "lookup.html",
        row=facts.describe_row(dataset),
        served=served,
        key=key,
        generation=generation,
        kind=kind,
        answer=answer,
        microseconds=microseconds,
        shard=shard,
        text=text,
        is_whole=is_whole,
    )


async def compare(request: web.Request) -> web.Response:
    """Show the choice of two generations, and their difference if they were sent. A form posts them, because a
    comparison is work that other sites must not be able to start."""
    dataset, form = _find_dataset(request).dataset, await read_form(request)
    held = pages.list_generations(dataset)
    before = str(form.get("before", "")) or request.query.get("before", "")
    after = str(form.get("after", "")) or request.query.get("after", "")
    before = before if before in held else str(dataset.status.get("generation") or "")
    others = [found for found in (dataset.candidate, *held) if found in held and found != before]
    after = after if after in held else (others or [""])[0]
    began, found = time.perf_counter(), None
    if request.method == "POST" and before and after and before != after:
        found = await request[SOURCE].compare(dataset, before, after)
    is_elsewhere = isinstance(found, Elsewhere)
    return render(
        request,
        "diff.html",
        row=facts.describe_row(dataset),
        held=held,
        before=before,
        after=after,
        elsewhere=found if is_elsewhere else None,
        difference=None if is_elsewhere else found,
        seconds=time.perf_counter() - began,
    )
