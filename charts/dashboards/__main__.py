"""Write every dashboard to the chart."""

from charts.dashboards.dashboards import FOLDER, make_dashboards

for name, text in make_dashboards().items():
    (FOLDER / name).write_text(text, encoding="utf-8")
