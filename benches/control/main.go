// Program control is what two Tailscale nodes need to find each other in the laboratory: Tailscale's own test control
// server, a DERP relay over TLS, and a STUN server. It keeps nothing on disk and lets every node in.
//
// It stands in for Headscale in `cargo bench -p rustguard-benches --bench compare`.
package main

import (
	"context"
	"crypto/tls"
	"flag"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"

	"tailscale.com/derp/derpserver"
	"tailscale.com/net/stunserver"
	"tailscale.com/tailcfg"
	"tailscale.com/tstest/integration/testcontrol"
	"tailscale.com/types/key"
)

const (
	controlPort = "9911"
	derpPort    = "9912"
	stunPort    = 3478
)

func main() {
	address := flag.String("address", "127.0.0.1", "the IPv4 address to listen at")
	flag.Parse()
	ip := netip.MustParseAddr(*address)

	stun := stunserver.New(context.Background())
	if err := stun.Listen(netip.AddrPortFrom(ip, stunPort).String()); err != nil {
		log.Fatal(err)
	}
	go func() { log.Fatal(stun.Serve()) }()

	quiet := func(string, ...any) {}
	relay := derpserver.New(key.NewNode(), quiet)
	server := httptest.NewUnstartedServer(derpserver.Handler(relay))
	server.Listener.Close()
	server.Listener = listen(net.JoinHostPort(*address, derpPort))
	// A DERP client upgrades HTTP/1.1.
	server.Config.TLSNextProto = make(map[string]func(*http.Server, *tls.Conn, http.Handler))
	server.StartTLS()

	control := &testcontrol.Server{
		Logf: quiet,
		DERPMap: &tailcfg.DERPMap{Regions: map[tailcfg.DERPRegionID]*tailcfg.DERPRegion{1: {
			RegionID:   1,
			RegionCode: "lab",
			Nodes: []*tailcfg.DERPNode{{
				Name:             "1",
				RegionID:         1,
				HostName:         *address,
				IPv4:             *address,
				IPv6:             "none",
				STUNPort:         stunPort,
				DERPPort:         server.Listener.Addr().(*net.TCPAddr).Port,
				InsecureForTests: true,
			}},
		}}},
		ExplicitBaseURL: "http://" + net.JoinHostPort(*address, controlPort),
		// As a production server says it of connected nodes. Nodes recover faster where they are told.
		AllOnline: true,
	}
	listener := listen(net.JoinHostPort(*address, controlPort))
	log.Print("ready")
	log.Fatal(http.Serve(listener, control))
}

func listen(at string) net.Listener {
	listener, err := net.Listen("tcp", at)
	if err != nil {
		log.Fatal(err)
	}
	return listener
}
