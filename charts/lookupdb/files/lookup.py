"""What `helm test` runs in a pod: one real lookup, through the dataset's router."""

import sys
import urllib.error
import urllib.parse
import urllib.request

TIMEOUT_SECONDS = 10


def main(dataset: str, namespace: str, key: str, host: str = "") -> str | None:
    """Why the lookup failed, as a sentence; None when it did not."""
    host = host or f"{dataset}-router.{namespace}.svc"
    url = f"http://{host}/v1/lookup/{urllib.parse.quote(key, safe='')}"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
            print(url, response.headers.get("Lookupdb-Generation"), response.read().decode(errors="replace"))
            return None
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return f"The dataset {dataset} in the namespace {namespace} serves, but has no key {key!r}: set test.key."
        return f"{url} answered {error.code}: {error.read().decode(errors='replace')}"
    except OSError as error:
        return (
            f"No dataset {dataset} in the namespace {namespace} answers at {url} ({error}). Create one, e.g. with "
            "kubectl apply -f examples/airports.yaml, wait until it is Ready (kubectl get lds), or name another with "
            "test.dataset, test.namespace and test.key."
        )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
