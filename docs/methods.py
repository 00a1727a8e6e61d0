"""Writes ``docs/methods.md``: each equation of each paper and its line in ``train/``, each module's differences, the legal pairs.

    .venv/bin/python docs/methods.py

What is found in the code: where docstrings and comments name an equation ("equation 7", "equations 2 to 4", "equation 6 of
MS-SL", "equation 4 (8 in v1)"), what headers say of papers and differences, and which objectives each model takes. What stands
here: which equations a paper has. One that the code names and the paper does not have is an error.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prvr.train.pairs import LEGEND, Pair, pairs

ROOT = Path(__file__).resolve().parents[1]
PAGE = Path(__file__).with_suffix(".md")
COMMAND = ".venv/bin/python docs/methods.py"


@dataclass(frozen=True)
class Paper:
    """A paper whose equations the code names.

    Args:
        name: that a mention may be qualified with ("equation 7 of MS-SL").
        header: module whose header cites it; empty where the section before this one has cited it.
        title: of its section here.
        identifiers: as headers have them; the first paper that a header names is the one its module's equations are of.
        equations: number to what it says; none of a paper that was not at hand.
    """

    name: str
    header: str
    title: str
    identifiers: tuple[str, ...] = ()
    equations: Mapping[int, str] = field(default_factory=dict)

    @property
    def marks(self) -> tuple[str, ...]:
        return (*self.identifiers, self.name)


def _numbered(*equations: str) -> dict[int, str]:
    return dict(enumerate(equations, 1))


PAPERS = (
    Paper(
        "MS-SL",
        "train/models/ms_sl.py",
        "MS-SL",
        ("doi:10.1145/3503161.3547976",),
        _numbered(
            "sentence vector: words, pooled by attention",
            "moments, encoded",
            "clips: every run of moments, averaged",
            "frames, encoded",
            "clip-scale similarity",
            "key clip guided attention",
            "frame-scale similarity",
            "triplet loss",
            "InfoNCE",
            "training loss",
            "similarity in ranking",
        ),
    ),
    Paper("GMMFormer", "train/models/gmmformer.py", "GMMFormer", ("doi:10.1609/aaai.v38i6.28389", "arXiv:2310.05195")),
    Paper("GMMFormer v2", "train/models/gmmformer_v2.py", "GMMFormer v2", ("arXiv:2405.13824",)),
    Paper(
        "AMDNet",
        "train/models/amdnet.py",
        "AMDNet",
        ("arXiv:2504.10920",),
        _numbered(
            "video vector",
            "span anchors",
            "a span as a mask of clips",
            "masked multi-moment attention",
            "moment-enhanced clips",
            "similarity of text and video",
            "training loss",
            "InfoNCE, with all texts of a video for positives",
            "moment diversity loss",
            "moment relevance loss",
        ),
    ),
    Paper(
        "Ren et al.",
        "train/models/dual_branch.py",
        "Dual-branch, ICE, IRM and TCP (Ren et al.)",
        ("arXiv:2504.19637",),
        _numbered(
            "video-level similarity",
            "moment-level similarity and the key moment",
            "training loss of the base",
            "ICE: pairs that are mutually the most similar",
            "IRM: redundant features",
            "TCP: predicted groups",
            "TCP: cross-entropy of frames as they are and shuffled",
            "similarity in ranking",
        ),
    ),
    Paper(
        "v1",
        "",
        "The same, first version (v1)",
        ("arXiv:2504.19637v1",),
        _numbered(
            "sentence vector: words, pooled by attention",
            "video vector: frames, pooled by attention",
            "video-level similarity",
            "moment-level similarity",
            "triplet loss",
            "InfoNCE",
            "training loss of the base",
            "ICE: pairs that are mutually the most similar",
            "IRM: redundant features",
            "IRM: sum of its two losses",
            "TCP: predicted groups",
            "TCP: cross-entropy of frames as they are and shuffled",
            "training loss",
            "similarity in ranking",
        ),
    ),
    Paper(
        "RAL",
        "train/objectives/ral.py",
        "RAL",
        (),
        _numbered(
            "similarity of a sentence and its nearest clip, of the base",
            "training loss of the base",
            "mean and deviation of a representation",
            "the representation as a Gaussian",
            "query support set",
            "global and local features",
            "their aggregation",
            "distribution alignment loss",
            "proxies, drawn from the Gaussians",
            "proxy matching loss",
            "similarity of a word and a video",
            "similarity of a query and a video, by confidence in words",
            "training loss",
        ),
    ),
)
_BY_NAME = {paper.name: paper for paper in PAPERS}


@dataclass(frozen=True)
class Mention:
    """Where the code names an equation.

    Args:
        paper, number: of the equation.
        path: of the file, from the repository's root.
        line: of the definition whose docstring it is, or of the comment.
        name: of the definition, with its class; empty for a module's header.
    """

    paper: str
    number: int
    path: str
    line: int
    name: str

    @property
    def link(self) -> str:
        """To the line, from ``docs/``."""
        text = f"`{self.name}`" if self.name else "header"
        return f"[{text}](../{self.path}#L{self.line}) in `{self.path.removeprefix('train/')}`"


_ITEM = r"\d+(?: \([^()]*\))?"
_LIST = rf"{_ITEM}(?:(?:, and |, | and | to ){_ITEM})*"
_MARKS = "|".join(re.escape(mark) for mark in sorted((m for p in PAPERS for m in p.marks), key=len, reverse=True))
_MENTION = re.compile(
    rf"(?:(?P<before>{_MARKS})(?:'s|,)? )?\b[Ee]quations?:? (?P<list>{_LIST})(?: (?:of|in) (?P<after>{_MARKS}))?"
)
_ASIDE = re.compile(rf"\((?P<list>{_LIST}) in (?P<name>{_MARKS})\)")


def mentions() -> list[Mention]:
    """All of ``train/``, by file and line; raises SystemExit where the paper has no such equation."""
    found: list[Mention] = []
    for path in sorted((ROOT / "train").rglob("*.py")):
        found += _of_file(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    return found


def _of_file(path: str, source: str) -> Iterator[Mention]:
    tree = ast.parse(source)
    paper = paper_of(ast.get_docstring(tree) or "")
    seen = set()
    for line, name, text in _texts(tree, source):
        for found, number in numbers(text, paper):
            if number not in _BY_NAME[found].equations:
                raise SystemExit(f"{path}:{line}: {found} has no equation {number}")
            mention = Mention(found, number, path, line, name)
            if mention not in seen:
                seen.add(mention)
                yield mention


def paper_of(header: str) -> str:
    """Name of the first paper that a module's header names, by identifier or name; empty where it names none."""
    first = re.search(rf"(?<![\w-])(?:{_MARKS})(?!\w)", " ".join(header.split()))
    return _marked(first[0]) if first else ""


def numbers(text: str, paper: str) -> Iterator[tuple[str, int]]:
    """Each equation that a text names, as its paper's name and its number; ``paper`` is whose it is where nothing says."""
    for match in _MENTION.finditer(" ".join(text.split())):
        mark = match["before"] or match["after"]
        name = _marked(mark) if mark else paper
        if not name:
            raise SystemExit(f"whose equation is it? {match[0]!r}")
        for aside in _ASIDE.finditer(match["list"]):
            yield from ((_marked(aside["name"]), number) for number in _range(aside["list"]))
        yield from ((name, number) for number in _range(re.sub(r" \([^()]*\)", "", match["list"])))


def _range(text: str) -> Iterator[int]:
    """Numbers of "2, 5 to 7 and 9"."""
    for first, last in re.findall(r"(\d+)(?: to (\d+))?", text):
        yield from range(int(first), int(last or first) + 1)


def _marked(mark: str) -> str:
    return next(paper.name for paper in PAPERS if mark in paper.marks)


def _texts(tree: ast.Module, source: str) -> Iterator[tuple[int, str, str]]:
    """Docstrings and comments: the line to link to, the name of the definition around it, and the text."""
    yield 1, "", ast.get_docstring(tree) or ""
    definitions = list(_definitions(tree, ""))
    for node, name in definitions:
        yield node.lineno, name, ast.get_docstring(node) or ""
    comments: dict[int, list[str]] = {}
    start = last = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            start = start if token.start[0] == last + 1 else token.start[0]
            last = token.start[0]
            comments.setdefault(start, []).append(token.string.lstrip("# "))
    for line, parts in comments.items():
        around = [name for node, name in definitions if node.lineno <= line <= (node.end_lineno or node.lineno)]
        yield line, around[-1] if around else "comment", " ".join(parts)


def _definitions(
    tree: ast.AST, prefix: str
) -> Iterator[tuple[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, str]]:
    """With their names, outer ones first."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node, f"{prefix}{node.name}"
            yield from _definitions(node, f"{prefix}{node.name}.")


def missing(found: list[Mention]) -> list[str]:
    """Equations that no docstring, comment or header names."""
    named = {(mention.paper, mention.number) for mention in found}
    return [f"{p.name} {number}" for p in PAPERS for number in p.equations if (p.name, number) not in named]


def page() -> str:
    """All of ``docs/methods.md``."""
    found = mentions()
    headers = {path: header for path, header in _headers().items() if paper_of(header)}
    parts = [
        "# Methods: the papers' equations and their lines",
        f"<!-- Written by docs/methods.py from the code; write it anew with `{COMMAND}`. -->",
        "Which line is which equation, what each module reads differently from its paper or from its authors' code, and which "
        "objectives go with which models. An equation is linked to the definitions whose docstrings name it, and to a module's "
        "header where no definition does.",
        "## Which objectives go with which models",
        _grid(pairs()),
    ]
    for paper in PAPERS:
        parts += [f"## {paper.title}", *([_citation(headers[paper.header])] if paper.header else [])]
        parts.append(
            _table(paper, found)
            if paper.equations
            else "The paper was not at hand, so its equations have no numbers here."
        )
        for path, header in headers.items():
            notes = _notes(header)
            if paper_of(header) == paper.name and len(notes) > 1:
                parts += [f"### [`{path}`](../{path})", *notes]
    return "\n\n".join(parts) + "\n"


def _headers() -> dict[str, str]:
    files = sorted((ROOT / "train").glob("models/*.py")) + sorted((ROOT / "train").glob("objectives/*.py"))
    sources = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}
    return {path: ast.get_docstring(ast.parse(source)) or "" for path, source in sources.items()}


def _citation(header: str) -> str:
    """A header's first two paragraphs, without a sentence that introduces a list."""
    quoted = [_plain(part.partition("\n  - ")[0]) for part in header.split("\n\n")[:2]]
    return "\n>\n".join(f"> {re.sub(r'(?<=[.]) [^.]*:$', '', part)}" for part in quoted)


def _table(paper: Paper, found: list[Mention]) -> str:
    lines = ["| equation | what it is | where |", "|---|---|---|"]
    for number, what in paper.equations.items():
        own = [mention for mention in found if (mention.paper, mention.number) == (paper.name, number)]
        # A header says what a module is about, and options are settings: what computes comes first, or alone.
        own = [mention for mention in own if mention.name] or own
        own.sort(key=lambda mention: (mention.name.endswith("Options"), mention.path, mention.line))
        lines.append(f"| {number} | {what} | {'; '.join(mention.link for mention in own) or '—'} |")
    return "\n".join(lines)


_SAYS = re.compile(r"[Dd]iffers|leaves? open|not at hand|lost its formulas|quirk|is read|The form ``")


def _notes(header: str) -> list[str]:
    """A header's first sentence, and its paragraphs about differences and readings."""
    first, *rest = header.split("\n\n")
    return [_plain(first), *(_listed(part) for part in rest if _SAYS.search(part))]


def _listed(paragraph: str) -> str:
    """A paragraph with a list in it, as Markdown."""
    blocks: list[str] = []
    for line in paragraph.splitlines():
        item = bool(blocks) and blocks[-1].startswith("- ")
        if line.startswith("  - "):
            blocks.append(line.strip())
        elif blocks and item == line.startswith("    "):
            blocks[-1] += f" {line.strip()}"
        else:
            blocks.append(line)
    listed = ""
    for before, block in zip(["", *blocks], blocks, strict=False):
        listed += ("\n" if before.startswith("- ") and block.startswith("- ") else "\n\n") + _plain(block)
    return listed.strip()


def _plain(text: str) -> str:
    """One line, with Markdown's marks for code."""
    return " ".join(text.replace("``", "`").split())


def _grid(found: tuple[Pair, ...]) -> str:
    columns = list(dict.fromkeys(pair.objective for pair in found))
    lines = ["| | " + " | ".join(f"`{name}`" for name in columns) + " |", "|---|" + ":-:|" * len(columns)]
    for model in dict.fromkeys(pair.model for pair in found):
        marks = " | ".join(f"`{pair.mark}`" for pair in found if pair.model == model)
        lines.append(f"| `{model}` | {marks} |")
    reasons = [f"- `{pair.model}+{pair.objective}`: {pair.refusal}." for pair in found if pair.refusal]
    legend = ", ".join(
        f"`{mark}` {meaning}" for mark, _, meaning in (part.partition(" ") for part in LEGEND.split(", "))
    )
    told = (
        "Every pair was built to write this table, as `prvr-train --list` does, with the settings that the model's paper has for "
        "the objective, or else the objective's own."
    )
    return "\n\n".join(["\n".join(lines), f"{legend}. {told}", *(["\n".join(reasons)] if reasons else [])])


def main() -> None:
    """Write the page, and say which equations have no line."""
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: equations without a line: {', '.join(missing(mentions())) or 'none'}")


if __name__ == "__main__":
    main()
