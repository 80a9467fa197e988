"""Names of files in a run folder that several packages use."""

CONFIG_FILE = "config.yaml"
SAMPLES_FILE = "samples.json"
REPORT_FILE = "report.html"
