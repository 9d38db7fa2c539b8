"""`refract prune`: what the answer store takes on the disk, and what of it to remove."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from refract.cli.options import add_cache_dir, not_negative, size_bytes

if TYPE_CHECKING:
    from refract.cli.parser import Commands
    from refract.run.prune import Inventory, Plan

_DESCRIPTION = (
    "Shows what the cache folder holds, and removes what no run can use again: blobs that no answer refers to, and "
    "files that killed processes left. With --older-than or --max-size answers go too, oldest first; a run asks again "
    "for those it needs. Models, corpora and engines stay, and nothing goes while another refract uses the folder."
)
_KEPT = ("models", "corpora", "tokenizers", "engines")


def add_parser(commands: Commands) -> None:
    """Adds `prune` to the commands."""
    summary = "show what stored answers take on the disk, and make room"
    parser = commands.add_parser("prune", help=summary, description=_DESCRIPTION)
    text = "remove answers that were stored more than so many days ago"
    parser.add_argument("--older-than", type=not_negative, metavar="DAYS", help=text)
    text = "remove the oldest answers until the store has at most this size, such as 500M or 2G"
    parser.add_argument("--max-size", type=size_bytes, metavar="SIZE", help=text)
    parser.add_argument("--dry-run", action="store_true", help="say what would be removed, and remove nothing")
    add_cache_dir(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Shows and removes; what is printed on stdout says what was freed. Returns 0."""
    from datetime import UTC, datetime

    from refract.cli.output import emit
    from refract.run.cache import cache_folder
    from refract.run.prune import plan_pruning, prune, take_inventory
    from refract.run.usage import Claim

    cache = cache_folder(args.cache_dir)
    with Claim(cache, alone=not args.dry_run):
        found = take_inventory(cache)
        plan = plan_pruning(found, now=datetime.now(UTC), older_than_days=args.older_than, most_bytes=args.max_size)
        if not args.dry_run:
            prune(cache, plan)
    emit(_shown(cache, found, plan, dry=args.dry_run))
    return 0


def _shown(cache: Path, found: Inventory, plan: Plan, *, dry: bool) -> str:
    """The folder's parts with their sizes, then what was removed of them."""
    dates = [answer.created[:10] for answer in found.answers]
    span = f"{dates[0]} to {dates[-1]}" if dates else ""
    rows = [
        ("answers", f"{len(found.answers):,}", size(sum(a.size_bytes for a in found.answers)), span),
        ("blobs", f"{len(found.blobs):,}", size(sum(found.blobs.values())), ""),
    ]
    if found.leftovers:
        rows.append(("leftovers", f"{len(found.leftovers):,}", size(sum(found.leftovers.values())), ""))
    rows += [
        (name, "", size(_folder_bytes(cache / name)), "never removed") for name in _KEPT if (cache / name).is_dir()
    ]
    table = "".join(f"{n:<12}{count:>8}{amount:>12}  {note}".rstrip() + "\n" for n, count, amount, note in rows)
    parts = [(len(plan.answers), "answer"), (len(plan.blobs), "blob"), (len(plan.leftovers), "leftover")]
    words = ", ".join(f"{count:,} {noun}{'' if count == 1 else 's'}" for count, noun in parts if count)
    if not words:
        return f"{table}\nnothing to remove\n"
    return f"{table}\n{'would remove' if dry else 'removed'} {words}: {size(plan.size_bytes)}\n"


def size(number: int) -> str:
    """Bytes to read: 812 B, 4.0 KiB, 1.2 GiB."""
    amount, units = float(number), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1023.95 and len(units) > 1:
        amount, units = amount / 1024.0, units[1:]
    return f"{amount:.0f} B" if units[0] == "B" else f"{amount:.1f} {units[0]}"


def _folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
