module lookupdb.dev/e2e/clients/http_go

go 1.24
