// Enforces NetworkPolicies on one node. sigs.k8s.io/kube-network-policies decides about the first packet of each
// connection, which it gets from a queue of the kernel. The library's rules fail on kernels without nft_queue. So this
// program writes its own rules, with xtables' target NFQUEUE, which nft_compat offers.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/signal"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
)

const (
	queue = 107
	table = "lookupdb-e2e"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	controller, err := networkpolicy.NewController(
		client,
		factory.Networking().V1().NetworkPolicies(),
		factory.Core().V1().Namespaces(),
		factory.Core().V1().Pods(),
		nil, nil, nil, nil,
		networkpolicy.Config{NodeName: os.Getenv("NODE_NAME"), QueueID: queue},
	)
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	if err := writeRules(); err != nil {
		return fmt.Errorf("cannot send packets to the queue: %w", err)
	}
	defer removeRules()
	return controller.Run(ctx)
}

// writeRules makes the first packet of each connection of pods go to the queue, after Services' addresses are translated
// and before pods' own are. Packets of the node's root, such as the kubelet's probes, pass.
func writeRules() error {
	nft, err := nftables.New()
	if err != nil {
		return err
	}
	own := nft.AddTable(&nftables.Table{Name: table, Family: nftables.TableFamilyIPv4})
	nft.FlushTable(own)
	chain := nft.AddChain(&nftables.Chain{
		Name:     "postrouting",
		Table:    own,
		Type:     nftables.ChainTypeFilter,
		Hooknum:  nftables.ChainHookPostrouting,
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityNATSource - 5),
	})
	established := make([]byte, 4)
	binary.NativeEndian.PutUint32(established, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)
	for _, exprs := range [][]expr.Any{
		{
			&expr.Meta{Key: expr.MetaKeySKUID, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0, 0, 0, 0}},
			&expr.Verdict{Kind: expr.VerdictAccept},
		},
		{
			&expr.Ct{Register: 1, Key: expr.CtKeySTATE},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: established, Xor: []byte{0, 0, 0, 0}},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{0, 0, 0, 0}},
			&expr.Verdict{Kind: expr.VerdictAccept},
		},
		{
			&expr.Target{Name: "NFQUEUE", Rev: 2, Info: queueInfo()},
		},
	} {
		nft.AddRule(&nftables.Rule{Table: own, Chain: chain, Exprs: exprs})
	}
	return nft.Flush()
}

// queueInfo is the kernel's struct xt_NFQ_info_v2: the first queue and the number of queues. Packets pass while nothing
// reads the queue, so that a node keeps its network if the enforcer is killed.
func queueInfo() *xt.Unknown {
	info := make(xt.Unknown, 0, 8)
	for _, value := range []uint16{queue, 1, 1, 0} {
		info = binary.NativeEndian.AppendUint16(info, value)
	}
	return &info
}

func removeRules() {
	nft, err := nftables.New()
	if err == nil {
		nft.DelTable(&nftables.Table{Name: table, Family: nftables.TableFamilyIPv4})
		err = nft.Flush()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot remove the rules:", err)
	}
}
