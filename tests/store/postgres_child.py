"""A node that commits without end, to be stopped by tests: python -m tests.store.postgres_child ADDRESS FIRST_ROW

Says `kept ROW` for each batch, and ends when its shards are another's."""

import sys
from itertools import count

from reach.store.postgres import PostgresJournal
from tests.contracts.journal_rows import outcome, task, writes


def main() -> None:
    journal = PostgresJournal(sys.argv[1])
    journal.open()
    journal.claim(range(64))
    for row in count(int(sys.argv[2]), 20):
        journal.commit(writes(tasks=[task(row + place) for place in range(20)], outcomes=[outcome(row)]))
        lost = journal.lost()
        sys.stdout.write("lost\n" if lost else f"kept {row}\n")
        sys.stdout.flush()
        if lost:
            return


if __name__ == "__main__":
    main()
