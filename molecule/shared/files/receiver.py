#!/usr/bin/env python3
"""Take messages over HTTP, as ntfy and a webhook do, and append each to a file as a line of JSON: path, headers, body.

    receiver.py FILE [--address ADDRESS] [--port PORT] [--certificate PEM]

Prints the port. FILE.status has the status of the next answers, and 200 is the status without it.
"""

from __future__ import annotations

import argparse
import json
import ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--certificate", default="")
    args = parser.parse_args()
    status = args.file.with_name(f"{args.file.name}.status")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            answer = int(status.read_text()) if status.exists() else 200
            with args.file.open("a") as file:
                row = {"path": self.path, "headers": dict(self.headers), "body": body, "status": answer}
                file.write(json.dumps(row) + "\n")
            self.send_response(answer)
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing: the file has every message."""

    server = ThreadingHTTPServer((args.address, args.port), Handler)
    if args.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(args.certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
