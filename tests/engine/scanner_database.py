"""Fills the scanner's own database with OSV records; runs in the scanner's environment.

python scanner_database.py RECORDS.json, with VDB_HOME set.
"""

import json
import sys
from datetime import datetime, timezone
from pathlib import Path

from vdb.lib import config, db6
from vdb.lib.osv import OSVSource

source = OSVSource()
db6.get()
for record in json.loads(Path(sys.argv[1]).read_text()):
    source.store(source.convert(record))
db6.optimize_and_close_all()
# Younger than a day, so that nothing newer is looked for on the network.
Path(config.VDB_METADATA_FILE).write_text(json.dumps({"created_utc": datetime.now(tz=timezone.utc).isoformat()}))
