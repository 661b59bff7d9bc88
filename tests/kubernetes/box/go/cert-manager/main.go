// Command cert-manager runs the controllers of cert-manager for Certificates and for the issuers "selfSigned" and "ca".
// cert-manager's own command is in a module that no other module can require. This command registers the same
// controllers, and leaves out those of ACME, Vault and Venafi, of which no test makes use.
package main

import (
	"context"
	"flag"
	"log"
	"os/signal"
	"sync"
	"syscall"

	"github.com/cert-manager/cert-manager/pkg/controller"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
)

const workers = 2

func main() {
	kubeconfig := flag.String("kubeconfig", "", "file with the address of the API server and the caller's credentials")
	namespace := flag.String("cluster-resource-namespace", "", "namespace of the Secrets of ClusterIssuers")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	contexts, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig:         *kubeconfig,
		KubernetesAPIQPS:   50,
		KubernetesAPIBurst: 100,
		IssuerOptions:      controller.IssuerOptions{ClusterResourceNamespace: *namespace},
	})
	if err != nil {
		log.Fatal(err)
	}
	shared, err := contexts.Build()
	if err != nil {
		log.Fatal(err)
	}
	var running sync.WaitGroup
	for name, construct := range controller.Known() {
		loop, err := construct(contexts)
		if err != nil {
			log.Fatalf("%s: %v", name, err)
		}
		running.Go(func() {
			if err := loop.Run(workers, ctx); err != nil {
				log.Fatalf("%s: %v", name, err)
			}
		})
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	running.Wait()
}
