"""Whether the node in this container lives: exit code 0 if it answers `/healthz`, else 1. For HEALTHCHECK and compose.

`healthcheck.py ready` asks `/readyz` instead: whether it takes work. The port is the one of the environment; a
certificate is not looked at, as this asks the machine itself.
"""

import os
import ssl
import sys
import urllib.request

port = os.environ.get("AGENT_REACH_SERVER_ADMIN_PORT") or "8800"
scheme = "https" if os.environ.get("AGENT_REACH_SERVER_TLS_CERT") else "http"
path = "readyz" if sys.argv[1:] == ["ready"] else "healthz"
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
try:
    with urllib.request.urlopen(f"{scheme}://127.0.0.1:{port}/{path}", timeout=2.5, context=context):
        pass
except OSError as error:  # an answer other than 2xx is one too
    sys.exit(f"{path}: {error}")
