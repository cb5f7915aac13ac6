"""The rows of a SQL query as documents, through SQLAlchemy and a server-side cursor."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from es_sbert.engines.retry import Backoff, RetryPolicy
from es_sbert.errors import SourceError, UsageError, error_summary, require_extra
from es_sbert.ingest.sources.document_source import (
    BlockingCalls,
    DocumentSource,
    Origin,
    ReadCancelled,
    ReadContext,
    Record,
    RejectedRecord,
    RequiredColumns,
    SourceUnavailable,
)
from es_sbert.ingest.sources.table_rows import SQL_ROWS, row_record, value_to_json
from es_sbert.installation import install_command, install_extra_command
from es_sbert.io.text_formats import CorruptStream
from es_sbert.messages import shorten

if TYPE_CHECKING:
    from sqlalchemy import Connection, CursorResult, Engine
    from sqlalchemy.engine import URL


_FETCH_ROWS = 200  # fetched at a time
_URL_HINT = "Write it like postgresql://user@host/database or sqlite:///folder/file.db."
# A query begins with one of these words. EXPLAIN does not, because it can run the statement that it explains.
_QUERY_WORDS = ("SELECT", "WITH", "VALUES", "TABLE")
_QUOTED_OR_COMMENT = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|--[^\n]*|/\*.*?\*/""", re.DOTALL)
# With these names, which give no driver, the driver of the extra is used. Some providers write postgres.
_POSTGRESQL_NAMES = ("postgresql", "postgres")


@dataclass(frozen=True)
class SqlSource(DocumentSource):
    """A query.

    Attributes:
        statement: SQL that returns rows.
        database: Address of the database in SQLAlchemy's notation; may hold a password.
    """

    statement: str
    database: SecretStr
    name: str = "sql"
    path: None = None
    size: None = None

    def check(self, max_bytes: int, required: RequiredColumns) -> None:
        engine = self._engine()
        from sqlalchemy.exc import SQLAlchemyError

        try:
            connection = engine.connect()
        except SQLAlchemyError as error:
            remedy = "Check the address in `database`, and its user and password."
            raise SourceError(f"the database cannot be reached: {self._reason(error)}", remedy) from None
        with connection:
            try:
                with self._executed(connection) as result:
                    columns = list(result.keys())
            except SQLAlchemyError as error:
                remedy = "Correct the query in `sql`; test it in a SQL client first."
                raise SourceError(f"the database refuses the query: {self._reason(error)}", remedy) from None
        required.check("the query", columns)

    def records(self, context: ReadContext) -> Iterator[Record | RejectedRecord]:
        calls = BlockingCalls(context.stop)
        fetched = self._fetched(context)
        number = 0
        try:
            while rows := calls(lambda: next(fetched, None)):
                for values in rows:
                    if context.stop.is_set():
                        raise ReadCancelled
                    number += 1
                    row = {name: value_to_json(value) for name, value in values.items()}
                    yield row_record(row, Origin(self.name, number), context.settings, SQL_ROWS)
        finally:
            calls.close(fetched.close)

    def _fetched(self, context: ReadContext) -> Generator[list[dict[str, Any]], None, None]:
        """Fetch rows by column, some at a time, with the values of the database driver."""
        from sqlalchemy.exc import SQLAlchemyError

        with self._connect(context) as connection:
            try:
                with self._executed(connection) as result:
                    columns = list(result.keys())
                    for rows in result.partitions(_FETCH_ROWS):
                        yield [dict(zip(columns, values, strict=True)) for values in rows]
            except SQLAlchemyError as error:
                raise self._failure(error) from None

    def _connect(self, context: ReadContext) -> Connection:
        """Connect, and keep trying while the database cannot be reached.

        Raises:
            SourceUnavailable: the retry budget is spent.
            ReadCancelled: the load stops.
        """
        from sqlalchemy.exc import SQLAlchemyError

        engine = self._engine()
        backoff = Backoff(RetryPolicy(context.settings.retry_seconds), context.stop)
        while True:
            try:
                return engine.connect()
            except SQLAlchemyError as error:
                if context.stop.is_set():
                    raise ReadCancelled from None
                if not backoff.wait():
                    raise SourceUnavailable(f"the database cannot be reached ({self._reason(error)})") from None

    def _executed(self, connection: Connection) -> CursorResult[Any]:
        """Run the query with a server-side cursor.

        Raises:
            SQLAlchemyError: the database refuses the query.
            SourceError: the statement is not a query.
        """
        _check_query(self.statement)
        # Read-only where the database supports it, so that the statement cannot change data.
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA query_only = ON")
        # Without parameters, every driver takes a percent sign literally.
        connection = connection.execution_options(
            stream_results=True, yield_per=_FETCH_ROWS, no_parameters=True, postgresql_readonly=True
        )
        result = connection.exec_driver_sql(self.statement)
        if not result.returns_rows:
            result.close()
            raise SourceError("the statement in `sql` returns no rows", "Write a query, such as SELECT … FROM ….")
        return result

    def _failure(self, error: Exception) -> CorruptStream | SourceUnavailable:
        """Create the error for a query that failed between two rows."""
        from sqlalchemy.exc import InterfaceError, OperationalError

        # A query cannot resume. The same command runs it again and skips documents that are already in the index.
        reason = self._reason(error)
        is_retryable = isinstance(error, OperationalError | InterfaceError)
        if self._url().get_backend_name() == "sqlite":
            # SQLite's driver raises OperationalError for every failure, but there is no connection that could break.
            is_retryable = "locked" in reason
        return SourceUnavailable(reason) if is_retryable else CorruptStream(f"the query failed: {reason}")

    def _engine(self) -> Engine:
        """Create the SQLAlchemy engine, without a connection pool.

        Raises:
            UsageError: the address is invalid, or the driver of its database is not installed.
            SourceError: the SQLite file does not exist.
        """
        require_extra("sql", "sqlalchemy")
        from sqlalchemy import create_engine
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError
        from sqlalchemy.pool import NullPool

        try:
            url = self._url()
            _check_sqlite_file(url)
            return create_engine(url, poolclass=NullPool)
        except NoSuchModuleError as error:
            raise UsageError(
                f"SQLAlchemy does not know the database {self._url().drivername}", f"{_URL_HINT} Others need a package."
            ) from error
        except ImportError as error:
            raise UsageError(
                f"{self._url().drivername} needs the package {error.name}, which is not installed",
                f"Install it: {install_command(str(error.name))}; for PostgreSQL, {install_extra_command('sql')}",
            ) from error
        except ArgumentError:
            # The address may hold a password, so it is not repeated here.
            raise UsageError("the address in `database` cannot be read", _URL_HINT) from None

    def _url(self) -> URL:
        from sqlalchemy import make_url

        url = make_url(self.database.get_secret_value())
        return url.set(drivername="postgresql+psycopg") if url.drivername in _POSTGRESQL_NAMES else url

    def _reason(self, error: Exception) -> str:
        """The database's message as one line, without the password."""
        reason = error_summary(getattr(error, "orig", None) or error)
        password = self._url().password
        return reason.replace(str(password), "***") if password else reason


def _check_query(statement: str) -> None:
    """Check that a statement is one query.

    A read-only transaction is not enough: ATTACH and VACUUM INTO create files even there, and not every database has
    one. A query can still call functions that write.

    Raises:
        SourceError: it is a different statement, or there are several.
    """
    bare = _QUOTED_OR_COMMENT.sub(" ", statement).strip("(; \t\r\n")
    word = re.split(r"\W", bare, maxsplit=1)[0].upper()
    if word not in _QUERY_WORDS:
        raise SourceError(
            f"the statement in `sql` is not a query: it begins with {shorten(word, 40) or 'nothing'}",
            "Write a query, such as SELECT … FROM …. Run other statements in a SQL client.",
        )
    if ";" in bare:
        raise SourceError("`sql` has several statements", "Write one query. Run other statements in a SQL client.")


def _check_sqlite_file(url: URL) -> None:
    """Check that a SQLite file exists, because SQLAlchemy would create a missing one."""
    path = url.database
    if url.get_backend_name() != "sqlite" or not path or path == ":memory:" or path.startswith("file:"):
        return
    if not Path(path).is_file():
        raise SourceError(f"the database {path} does not exist", "Check the path in `database`.")
