package outbound_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/gemworker/gem/internal/outbound"
	"github.com/gemworker/gem/internal/testing/switching"
)

func TestAResponseThatSwitchesProtocolsHasNoBodyAndNoConnection(t *testing.T) {
	t.Parallel()
	url, closed := switching.New(t)
	client := http.Client{Transport: outbound.Bounded(http.DefaultTransport)}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusSwitchingProtocols || len(body) > 0 || err != nil {
		t.Errorf("%d %q %v", resp.StatusCode, body, err)
	}
	<-closed
	_ = resp.Body.Close()
}
