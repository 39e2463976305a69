//go:build !windows

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"
)

// outside is a server on which calls have effects. It counts the requests that it receives, and honours keys: it
// answers a second request with the same key like the first, without a second effect.
type outside struct {
	url    string
	server *http.Server
	ended  chan error

	mu       sync.Mutex
	arrivals []arrival
	gates    map[string]chan struct{} // by tool: requests wait for their answer until the gate opens
}

// arrival is a request that has reached the server.
type arrival struct {
	CallID  string `json:"call_id"`
	Attempt int    `json:"attempt"`
	Tool    string `json:"tool"`
	Key     string `json:"key,omitempty"`
}

func startOutside(ctx context.Context) (*outside, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	o := &outside{url: "http://" + l.Addr().String(), ended: make(chan error, 1), gates: map[string]chan struct{}{}}
	o.server = &http.Server{Handler: o, ReadHeaderTimeout: time.Minute}
	go func() { o.ended <- o.server.Serve(l) }()
	return o, nil
}

func (o *outside) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var a arrival
	if err := json.NewDecoder(r.Body).Decode(&a); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	o.mu.Lock()
	o.arrivals = append(o.arrivals, a)
	gate := o.gates[a.Tool]
	o.mu.Unlock()
	if gate == nil {
		return
	}
	select {
	case <-gate:
	case <-r.Context().Done(): // the client has gone
	}
}

// hold makes later requests of these tools wait for their answer.
func (o *outside) hold(tools ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, tool := range tools {
		o.gates[tool] = make(chan struct{})
	}
}

// release answers the waiting requests of these tools, and later ones at once.
func (o *outside) release(tools ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, tool := range tools {
		close(o.gates[tool])
		delete(o.gates, tool)
	}
}

// arrived returns the requests that have reached the server.
func (o *outside) arrived() []arrival {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]arrival{}, o.arrivals...)
}

func (o *outside) close() error {
	err := o.server.Close()
	if ended := <-o.ended; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}

func encode(v any) string {
	encoded, err := json.Marshal(v)
	if err != nil {
		panic(err) // cannot fail for strings and numbers
	}
	return string(encoded)
}
