"""Files and standard input as streams of records: JSON Lines, CSV, TSV and plain lines, plain or compressed."""
