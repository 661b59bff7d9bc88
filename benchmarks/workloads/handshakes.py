"""Opens connections with a TLS handshake and one request each, and prints the number of handshakes per second.

The program, which `secured.py` starts as a separate process, does not use the SDK.
"""

from __future__ import annotations

import argparse
import json
import ssl
import threading
import time
from http.client import HTTPSConnection
from urllib.parse import urlsplit


def connect(
    host: str,
    port: int,
    context: ssl.SSLContext,
    began: float,
    seconds: float,
    interval: float,
    made: list[int],
) -> None:
    """Open a connection per interval for `seconds`, immediately if late; append the number of connections to `made`."""
    count = 0
    while (passed := time.monotonic() - began) < seconds:
        if passed < count * interval:
            time.sleep(count * interval - passed)
        connection = HTTPSConnection(host, port, context=context, timeout=30)
        connection.request("GET", "/v1/versions")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
        connection.close()
        count += 1
    made.append(count)


def main() -> None:
    """Parse the command line, open the connections and print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--ca", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--at-once", type=int, required=True)
    parser.add_argument(
        "--per-second", type=float, required=True, help="connections that are tried per second"
    )
    options = parser.parse_args()
    place = urlsplit(options.url)
    context = ssl.create_default_context(cafile=options.ca)
    made: list[int] = []
    began = time.monotonic()
    interval = options.at_once / options.per_second
    arguments = (place.hostname, place.port, context, began, options.seconds, interval, made)
    threads = [threading.Thread(target=connect, args=arguments) for _ in range(options.at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == options.at_once, "a connection failed"
    print(json.dumps({"handshakes_per_second": sum(made) / (time.monotonic() - began)}))


if __name__ == "__main__":
    main()
