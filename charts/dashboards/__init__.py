"""The Grafana dashboards of the chart, as code: `make dashboards` writes them to charts/lookupdb/dashboards."""
