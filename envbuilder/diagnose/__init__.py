"""From a log or a faulty file to the cause and the cure."""
