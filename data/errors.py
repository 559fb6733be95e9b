"""What is wrong with somebody's data, and where: the one error that every reader and converter raises."""

from __future__ import annotations


class DataError(Exception):
    """A fault in the input data or its schema.

    The message is one line: what is wrong, then where (file, row group, row, column, as far as known), then the remedy.
    Command-line tools print it without a traceback and exit with code 2.

    Args:
        problem: what is wrong, without a full stop.
        file: the file (or folder) in which it was found.
        row_group: index of the Parquet row group inside the file.
        row: index of the row inside the file, from 0.
        column: name of the column.
        remedy: what to do about it.
    """

    def __init__(
        self,
        problem: str,
        *,
        file: object = None,
        row_group: int | None = None,
        row: int | None = None,
        column: str | None = None,
        remedy: str | None = None,
    ):
        self.problem, self.file, self.row_group, self.row, self.column = problem, file, row_group, row, column
        self.remedy = remedy
        where = [
            f"{name} {value}"
            for name, value in (("file", file), ("row group", row_group), ("row", row), ("column", column))
            if value is not None
        ]
        super().__init__(problem + (f" [{', '.join(where)}]" if where else "") + (f". {remedy}" if remedy else ""))

    def __reduce__(self):
        # Keyword-only arguments: without this the error would not survive the trip out of a worker process.
        return _rebuild, (self.problem, self.file, self.row_group, self.row, self.column, self.remedy)


def _rebuild(problem, file, row_group, row, column, remedy):
    return DataError(problem, file=file, row_group=row_group, row=row, column=column, remedy=remedy)
