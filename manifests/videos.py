"""Video files in folders: what counts as one."""

from pathlib import Path

VIDEO_ENDINGS = frozenset(
    ".3gp .asf .avi .flv .gif .m2ts .m4v .mkv .mov .mp4 .mpeg .mpg .mts .mxf .ogv .ts .vob .webm .wmv".split()  # noqa: SIM905
)


def is_video(path: Path) -> bool:
    """Whether a file's ending is that of a video."""
    return path.suffix.lower() in VIDEO_ENDINGS


def visible_files(folder: Path) -> list[Path]:
    """All files below a folder, sorted, but for those that are hidden or lie in a hidden folder."""
    return sorted(
        file
        for file in folder.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
