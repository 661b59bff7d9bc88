// oidc is an OIDC provider for tests: the server of zitadel's library with its storage in memory, on one address with
// TLS. Each start has a new key. Its arguments are the issuer, the address, the certificate, its key, the address to
// which it sends codes, and the ids of the programs that may ask for tokens.
package main

import (
	"log/slog"
	"net/http"
	"os"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
)

const secret = "secret-of-clients"

func main() {
	issuer, address, certificate, key, redirect := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]
	for _, id := range os.Args[6:] {
		storage.RegisterClients(storage.WebClient(id, secret, redirect))
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	router := exampleop.SetupServer(issuer, storage.NewStorage(storage.NewUserStore(issuer)), logger, false)
	logger.Error("server ended", "error", http.ListenAndServeTLS(address, certificate, key, router))
	os.Exit(1)
}
