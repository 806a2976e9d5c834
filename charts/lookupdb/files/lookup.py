"""Makes one real lookup through a dataset's router: the script of `helm test`, in a pod."""

import os
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request

TIMEOUT_SECONDS = 10
UNVERIFIED = ssl._create_unverified_context()  # noqa: S323 - as without TLS, the cluster's DNS says who answers


def main(dataset: str, namespaces: str, key: str, host: str = "") -> str | None:
    """Why the lookup failed, as a sentence; None when it succeeded. Of several ``namespaces``, with commas between
    them, the first one counts in which somebody answers."""
    unanswered = []
    for namespace in namespaces.split(","):
        url = f"//{host or f'{dataset}-router.{namespace}.svc'}/v1/lookup/{urllib.parse.quote(key, safe='')}"
        try:
            return ask(f"http:{url}", dataset, namespace, key)
        except OSError as error:
            unanswered.append(f"http:{url} ({error})")
    first = namespaces.split(",")[0]
    return (
        f"No dataset {dataset} in {namespaces.replace(',', ' or ')} answers: {', '.join(unanswered)}. Create one, e.g. "
        f"with kubectl apply -n {first} -f examples/airports.yaml, wait until it is Ready (kubectl get lds -A), "
        "or name the one that you have: helm upgrade --reuse-values --set "
        "test.namespace=…,test.dataset=…,test.key=…"
    )


def ask(url: str, dataset: str, namespace: str, key: str) -> str | None:
    """Why the router at ``url`` does not have ``key``; None when it has. Raises OSError when nobody answers."""
    try:
        request = urllib.request.Request(url)  # noqa: S310 - http
        if token := os.environ.get("LOOKUPDB_TOKEN", "").strip():
            if not token.isprintable() or " " in token:  # urllib would show it in its error
                return "the Secret that test.tokenSecret names holds no token in its key token"
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS, context=UNVERIFIED) as response:  # noqa: S310 - http
            print(url, response.headers.get("Lookupdb-Generation"), response.read().decode(errors="replace"))
            return None
    except urllib.error.HTTPError as error:
        body = error.read().decode(errors="replace")
        if error.code == 400 and "ask by https" in body:
            # The Service's port may be any: where 80 speaks TLS, the URL says so.
            secure = urllib.parse.urlsplit(url)._replace(scheme="https", netloc=with_port(url))
            return ask(secure.geturl(), dataset, namespace, key)
        if error.code == 404:
            return f"The dataset {dataset} in the namespace {namespace} serves, but has no key {key!r}: set test.key."
        return f"{url} answered {error.code}: {body}"


def with_port(url: str) -> str:
    """Host and port of ``url``, which is of http://."""
    host = urllib.parse.urlsplit(url)
    return host.netloc if host.port else f"{host.netloc}:80"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
