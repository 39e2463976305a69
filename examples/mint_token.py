"""Makes a token for a PostgREST of your own, where no Supabase signs users in.

    JWT_SECRET=... python3 examples/mint_token.py ada             a user with the id ada, for an hour
    JWT_SECRET=... python3 examples/mint_token.py ada --hours 8

JWT_SECRET is what PostgREST has as PGRST_JWT_SECRET. On Supabase you need none of this: a user's token comes from signing in.
Needs Python 3.9 or newer, and nothing else.
"""

import argparse
import base64
import hashlib
import hmac
import json
import os
import sys
import time


def mint(secret, claims):
    """A JWT with these claims, signed with the secret (HS256)."""

    def part(data):
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    def encoded(value):
        return part(json.dumps(value, separators=(",", ":")).encode())

    signed = encoded({"alg": "HS256", "typ": "JWT"}) + b"." + encoded(claims)
    return (signed + b"." + part(hmac.new(secret.encode(), signed, hashlib.sha256).digest())).decode()


def main():
    parser = argparse.ArgumentParser(description="Make a token for a PostgREST of your own. JWT_SECRET is its PGRST_JWT_SECRET.")
    parser.add_argument("user", help="the user's id, which stands in created_by of their calls")
    parser.add_argument("--role", default="authenticated", choices=["authenticated", "service_role"],
                        help="service_role acts for anyone: never give such a token to a browser")
    parser.add_argument("--hours", type=float, default=1, help="how long it is valid (%(default)s)")
    args = parser.parse_args()
    secret = os.environ.get("JWT_SECRET", "")
    if len(secret) < 32:
        sys.exit("JWT_SECRET must be set to what PostgREST has as PGRST_JWT_SECRET, of 32 characters or more")
    now = int(time.time())
    print(mint(secret, {"role": args.role, "sub": args.user, "iat": now, "exp": now + int(args.hours * 3600)}))


if __name__ == "__main__":
    main()
