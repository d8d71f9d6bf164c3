"""`tandem-compile corpus`: files of text in, a corpus for `tandem-run --corpus` out."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tandem.command import examples
from tandem.errors import UsageError

EXAMPLES = examples(
    "tandem-compile corpus docs/ src/ notes.txt -o corpus/ --tokenizer BUNDLE",
    "tandem-compile corpus pages.jsonl -o pages/ --tokenizer tokenizer.json",
)


@click.command("corpus", context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXAMPLES)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder of the corpus.")
@click.option(
    "--tokenizer",
    required=True,
    type=click.Path(path_type=Path),
    help="The bundle that it is for, or a tokenizer.json or its folder.",
)
@click.option("--replace", is_flag=True, help="Replace an older corpus in the output folder.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="No progress bar.")
def command(files: tuple[Path, ...], output: Path, tokenizer: Path, replace: bool, as_json: bool, quiet: bool) -> None:
    """Make a corpus of FILES that tandem-run --corpus looks drafts up in.

    FILES are UTF-8 texts, .jsonl files with a "text" in each line, and folders, of which .txt, .md, .py and .jsonl
    are taken. Texts and names of the files are not kept, token ids are.
    """
    from tandem.compile.corpus import build_corpus
    from tandem.compile.progress import Progress

    try:
        import tqdm  # noqa: F401
    except ImportError:
        raise UsageError("building needs tqdm, which is not installed: pip install 'tandem-llm[compile]'") from None
    with Progress(quiet=quiet) as progress:
        meta = build_corpus(files, tokenizer, output, replace=replace, progress=progress)
    if as_json:
        facts = {"path": str(output), "documents": meta.documents, "tokens": meta.tokens.count - meta.documents}
        click.echo(json.dumps(facts | {"tokenizer": meta.tokenizer, "vocab_size": meta.vocab_size}, indent=2))
        return
    if not quiet:
        tokens = meta.tokens.count - meta.documents
        click.echo(f"{meta.documents:,} documents, {tokens:,} tokens of the tokenizer {meta.tokenizer[:16]}", err=True)
    click.echo(str(output))
