"""MCP servers, sources, keys and the registry of MCP workers. See docs/mcp-workers.md."""

import json
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError
from django.template.defaultfilters import pluralize
from joserfc.jwk import OKPKey

from apps.core.errors import DomainError
from apps.principals import selectors as principals
from apps.principals.models import Principal
from apps.principals.tenancy import acting_as_system, acting_in
from apps.workers import selectors, services, trust
from apps.workers.manifests import Seen
from apps.workers.models import SourceKind
from apps.workers.shapes import ToolShown
from apps.workers.trust import Tier

_WHY: Final = "MCP workers: a command"


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as exc:
        raise ArgumentTypeError(f"{text!r} is no JSON: {exc}") from exc
    if not isinstance(found, dict):
        raise ArgumentTypeError(f"{text!r} is no JSON object")
    return found


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        server = verbs.add_parser("add", help="add an MCP server by its URL and approve its tools")
        server.add_argument("url")
        server.add_argument("--name", help="of the source (default: the worker's id)")
        server.add_argument(
            "--principal",
            default=services.SERVERS,
            help=f"for whom it is registered (default: {services.SERVERS}, made if needed)",
        )
        approve = verbs.add_parser("approve", help="approve tools of a registered MCP worker")
        approve.add_argument("worker_id")
        for one in (server, approve):
            which = one.add_mutually_exclusive_group()
            which.add_argument("--tool", action="append", metavar="NAME", help="approve this tool; may be repeated")
            which.add_argument("--all", action="store_true", help="approve all tools that it shows now")
        enroll = verbs.add_parser("enroll-key", help="trust what a key signs, up to a ceiling")
        enroll.add_argument("--name", required=True, help="the key's id is this and the beginning of its thumbprint")
        enroll.add_argument("--ceiling", required=True, choices=Tier.values)
        where = enroll.add_mutually_exclusive_group(required=True)
        where.add_argument("--private-file", type=Path, help="file of the private half; made if it does not exist")
        where.add_argument("--public-file", type=Path, help="file of the public half")
        revoke = verbs.add_parser("revoke-key", help="end the trust in a key, and in all workers that it has signed")
        revoke.add_argument("--key-id", required=True)
        revoke.add_argument("--why", required=True, help="recorded in the history of each worker")
        add = verbs.add_parser("add-source", help="add a source")
        add.add_argument("name")
        add.add_argument("--kind", required=True, choices=SourceKind.values)
        add.add_argument("--address", required=True, help="a URL; the path of the YAML file for kind static")
        add.add_argument("--principal", required=True, help="the principal that the workers are registered for")
        add.add_argument("--prefix", help="etcd: the prefix of the keys (default: /gatehouse/workers/)")
        add.add_argument("--user", help="etcd: the user; its password stands in --secret-file")
        add.add_argument("--service", help="Consul: the name of the service (default: mcp-worker)")
        add.add_argument("--worker", type=_json_object, metavar="JSON", help="defaults for servers without a manifest")
        add.add_argument(
            "--every", type=int, default=60, metavar="SECONDS", help="how often each worker is asked (default: 60)"
        )
        add.add_argument("--secret-file", type=Path, help="holds the password of etcd's user, or Consul's token")
        change = verbs.add_parser("change-source", help="change a source, and look at it now")
        change.add_argument("name")
        change.add_argument("--address")
        change.add_argument("--every", type=int, metavar="SECONDS")
        change.add_argument("--enabled", choices=["yes", "no"])
        change.add_argument("--secret-file", type=Path, help="holds another password or token")
        remove = verbs.add_parser("remove-source", help="remove a source, and the workers that only it lists")
        remove.add_argument("name")
        rebuild = verbs.add_parser(
            "rebuild", help="register the workers again that memory holds and the registry lacks"
        )
        for one in (server, approve, enroll, revoke, add, change, remove, rebuild):
            one.add_argument("--tenant", default="default")

    def handle(self, *_args: Any, verb: str, tenant: str, **given: Any) -> None:
        run = getattr(self, f"_{verb.replace('-', '_')}")
        try:
            seen = services.visit(given["url"]) if verb == "add" else None
            with acting_as_system(_WHY):
                tenant_id = principals.tenant_named(tenant).pk
            if verb == "rebuild":
                run(tenant_id)
            elif seen is not None:
                run(tenant_id, seen=seen, **given)
            else:
                with acting_in(tenant_id, _WHY):
                    run(tenant_id, **given)
        except DomainError as refusal:
            raise CommandError(refusal.detail) from refusal

    def _add(self, tenant_id: int, *, url: str, name: str | None, principal: str, seen: Seen, **given: Any) -> None:
        server = services.shown(url, seen)
        self.stdout.write(f"{server.server_name or url} shows {len(server.tools)} tool{pluralize(server.tools)}:")
        uids = self._chosen(server.tools, **given)  # not in a transaction: a person may take a while
        with acting_in(tenant_id, _WHY):
            added = services.add_server(
                principal=services.principal_for_servers(tenant_id=tenant_id, name=principal),
                url=url,
                seen=seen,
                name=name,
                approve=uids,
                why="by a command",
            )
        approved = sum(tool.approved for tool in added.tools)
        self.stdout.write(f"{added.worker_id} is added as source {added.source}; approved tools: {approved}")
        for fault in added.left_out:
            self.stdout.write(f"left out: {fault}")
        if not approved:
            self.stdout.write(
                f"Plans can't use it yet. Approve it: manage.py mcp_workers approve {added.worker_id} --all"
            )

    def _approve(self, tenant_id: int, *, worker_id: str, **given: Any) -> None:
        offered = selectors.tools_shown(tenant_id=tenant_id, worker_id=worker_id)
        uids = self._chosen(offered, **given)
        names = (
            services.approve_tools(tenant_id=tenant_id, worker_id=worker_id, uids=uids, why="by a command")
            if uids
            else []
        )
        self.stdout.write(f"approved: {', '.join(names) or 'nothing'}")

    def _chosen(self, shown: Sequence[ToolShown], **given: Any) -> list[str]:
        """The uids of the tools to approve: those named, all, or all if the person at the terminal says so."""
        for tool in shown:
            first = (tool.description.strip().splitlines() or [""])[0][:100]
            self.stdout.write(f"  {tool.name}  touches {trust.in_words(tool.effects)}  {first}")
        if given["tool"]:
            by_name = {tool.name: tool.tool_uid for tool in shown}
            if unknown := [name for name in given["tool"] if name not in by_name]:
                raise CommandError(f"There is no tool {unknown[0]!r}; there are {', '.join(by_name)}.")
            return [by_name[name] for name in given["tool"]]
        everything = given["all"]
        if not everything and sys.stdin.isatty():
            everything = input("Approve all of them? [y/N] ").strip().casefold() in {"y", "yes"}
        return [tool.tool_uid for tool in shown] if everything else []

    def _enroll_key(
        self, tenant_id: int, *, name: str, ceiling: str, private_file: Path, public_file: Path | None, **_: Any
    ) -> None:
        if public_file is None:
            key = _private_key(private_file, name)
        else:
            public = json.loads(trust.public_key(_read(public_file)))
            key = {**public, "kid": _key_id(name, OKPKey.import_key(public))}
        try:
            text = json.dumps({member: key[member] for member in ("kty", "crv", "x")})
        except (KeyError, TypeError) as exc:
            raise CommandError(f"{private_file} holds no private key.") from exc
        services.enroll_key(tenant_id=tenant_id, key_id=key["kid"], public_key=text, ceiling=Tier(ceiling))
        self.stdout.write(f"{key['kid']} may grant {ceiling}")

    def _revoke_key(self, tenant_id: int, *, key_id: str, why: str, **_: Any) -> None:
        stripped = services.revoke_key(tenant_id=tenant_id, key_id=key_id, why=why)
        self.stdout.write(f"{key_id} is revoked; {stripped} MCP workers are untrusted now")

    def _add_source(self, tenant_id: int, **given: Any) -> None:
        principal_id = principals.principal_id_named(given["principal"], tenant_id=tenant_id)
        options = {name: given[name] for name in ("worker", "prefix", "user", "service") if given[name] is not None}
        source = services.add_source(
            principal=Principal.objects.get(pk=principal_id),
            name=given["name"],
            kind=SourceKind(given["kind"]),
            address=given["address"],
            options=options,
            secret=_secret(given["secret_file"]) if given["secret_file"] else "",
            every=timedelta(seconds=given["every"]),
        )
        self.stdout.write(f"{source.name} is looked at from now on, and its MCP workers every {given['every']} s")

    def _change_source(self, tenant_id: int, *, name: str, **given: Any) -> None:
        services.change_source(
            tenant_id=tenant_id,
            name=name,
            address=given["address"],
            every=timedelta(seconds=given["every"]) if given["every"] is not None else None,
            enabled=given["enabled"] and given["enabled"] == "yes",
            secret=_secret(given["secret_file"]) if given["secret_file"] else None,
        )
        self.stdout.write(f"{name} is changed, and looked at within a second")

    def _remove_source(self, tenant_id: int, *, name: str, **_: Any) -> None:
        left = services.remove_source(tenant_id=tenant_id, name=name)
        self.stdout.write(f"{name} is removed; {left} MCP workers have left")

    def _rebuild(self, tenant_id: int) -> None:
        restored = services.restore(tenant_id=tenant_id)
        for one in restored:
            self.stdout.write(f"{one.worker_id}: {one.tier or 'left out'} ({one.reason})")
        self.stdout.write(f"{sum(one.tier is not None for one in restored)} MCP workers registered again")


def _key_id(name: str, key: OKPKey) -> str:
    return f"{name}-{key.thumbprint()[:12]}"


def _private_key(file: Path, name: str) -> dict[str, str]:
    """Read the key in the file. If there is none, write a new key atomically, readable by its owner alone."""
    if file.exists():
        try:
            found: dict[str, str] = json.loads(_read(file))
        except ValueError as exc:
            raise CommandError(f"{file} holds no private key.") from exc
    else:
        key = OKPKey.generate_key("Ed25519", private=True)
        members = {member: str(value) for member, value in key.as_dict(private=True).items()}
        found = {**members, "kid": _key_id(name, key)}
        part = file.with_name(f"{file.name}.part")
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        part.write_text(json.dumps(found), encoding="utf-8")
        part.replace(file)
    return found


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as exc:
        raise CommandError(f"{file} can't be read.") from exc


def _secret(file: Path) -> str:
    secret = _read(file).strip()
    if not secret:
        raise CommandError(f"{file} is empty.")
    return secret
