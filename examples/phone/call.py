"""Calls a tool from a phone, or from any machine with Python and an unstable connection.

    export GEM_URL=https://YOUR-PROJECT.supabase.co GEM_API_KEY=sb_publishable_... GEM_TOKEN=...
    python3 call.py os.create_note '{"domain": "business", "title": "Roof", "content": "Two tiles"}'

GEM_TOKEN is the signed-in user's access token. Without GEM_API_KEY, GEM_URL is your own PostgREST.

The script chooses the call's id before it sends anything. So it can retry a request whose answer was lost as often as
needed, and there is still one call. It prints the receipt as JSON. The exit code is the outcome of the call:

    0 succeeded   1 failed   2 not accepted, with a message   3 not_configured   4 no receipt within --timeout

The call continues when nobody waits for it: the same command with --id ID waits again, without a second call.
Needs only Python 3.9 or newer.
"""

import argparse
import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request
import uuid


class Refused(Exception):
    """The API answered, and a retry would not help."""


class Unavailable(Exception):
    """No answer, or one that asks to retry later."""


class Gem:
    def __init__(self, url, token, api_key=""):
        self.base = url.rstrip("/") + ("/rest/v1" if api_key else "")
        self.headers = {"Content-Type": "application/json", "Authorization": "Bearer " + token}
        if api_key:
            self.headers["apikey"] = api_key

    def rpc(self, function, arguments):
        """Calls a function of the API once."""
        request = urllib.request.Request(f"{self.base}/rpc/{function}", json.dumps(arguments).encode(), self.headers)
        try:
            with urllib.request.urlopen(request, timeout=15) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                said = explain(error)
            if error.code in (408, 429) or error.code >= 500:
                raise Unavailable(said) from None
            raise Refused(said) from None
        except (OSError, http.client.HTTPException, ValueError) as error:  # no connection, a broken one, or half an answer
            raise Unavailable(str(error) or type(error).__name__) from None

    def persist(self, function, arguments, until):
        """Retries until an answer or the deadline. Only for requests that may be sent twice."""
        pause, said = 0.2, None
        while True:
            try:
                return self.rpc(function, arguments)
            except Unavailable as error:
                if time.monotonic() + pause > until:
                    raise TimeoutError(str(error)) from None
                if str(error) != said:
                    said = str(error)
                    print("trying again:", said, file=sys.stderr)
            time.sleep(pause)
            pause = min(pause * 2, 10)

    def call(self, tool, tool_input, call_id, key=None, timeout=60.0):
        """Calls a tool and returns its receipt. TimeoutError: it has none yet."""
        until = time.monotonic() + timeout
        self.persist("enqueue_tool_call", {"tool_name": tool, "input": tool_input, "id": call_id, "idempotency_key": key}, until)
        pause = 0.2
        while True:
            receipt = self.persist("get_receipt", {"call_id": call_id}, until)
            if receipt is not None:
                return receipt
            if time.monotonic() + pause > until:
                raise TimeoutError("the call waits or runs")
            time.sleep(pause)
            pause = min(pause * 1.5, 5)


def explain(error):
    """What the API says of an error, in one line."""
    try:
        body = json.load(error)
        words = [body.get("message"), body.get("hint")]
    except (OSError, http.client.HTTPException, ValueError, AttributeError):
        words = []
    if not any(words):
        words = [error.reason]
    return f"HTTP {error.code}: " + " ".join(str(word).rstrip(".") + "." for word in words if word)


def json_object(text):
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"no JSON: {error}. Write it in single quotes, so that the shell leaves it whole") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError('it must be a JSON object, such as {"title": "Roof"}')
    return value


def main():
    parser = argparse.ArgumentParser(description="Call a tool and wait for its receipt. GEM_URL, GEM_TOKEN and, on Supabase, GEM_API_KEY say where.")
    parser.add_argument("tool", help="such as os.create_note")
    parser.add_argument("input", nargs="?", default="{}", type=json_object, help="a JSON object, in single quotes")
    parser.add_argument("--id", default=None, type=uuid.UUID, help="a call of before, to wait for it again")
    parser.add_argument("--key", help="the idempotency key, for safe-retry tools")
    parser.add_argument("--timeout", type=float, default=60, help="seconds to wait for the receipt (%(default)s)")
    args = parser.parse_args()
    url, token = os.environ.get("GEM_URL"), os.environ.get("GEM_TOKEN")
    if not url or not token:
        parser.error("GEM_URL and GEM_TOKEN must be set: the API's URL and the signed-in user's access token")
    if not url.startswith(("https://", "http://")):
        parser.error("GEM_URL must begin with https:// or http://")

    call_id = str(args.id or uuid.uuid4())
    print("call", call_id, file=sys.stderr)
    try:
        receipt = Gem(url, token, os.environ.get("GEM_API_KEY", "")).call(args.tool, args.input, call_id, args.key, args.timeout)
    except Refused as error:
        print(error, file=sys.stderr)
        return 2
    except (TimeoutError, KeyboardInterrupt) as error:
        print(f"No receipt yet ({str(error) or 'interrupted'}). To wait again: the same command with --id {call_id}", file=sys.stderr)
        return 4
    print(json.dumps(receipt, indent=2, ensure_ascii=False))
    return {"succeeded": 0, "not_configured": 3}.get(receipt["status"], 1)


if __name__ == "__main__":
    sys.exit(main())
