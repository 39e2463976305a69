package main

import (
	"encoding/binary"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

func TestTheProxyAddsItsRoundTrip(t *testing.T) {
	server, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() { // echoes
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(conn, conn)
			conn.Close()
		}
	}()
	const roundTrip = 20 * time.Millisecond
	through, stop, err := delayed(t.Context(), "postgres://"+server.Addr().String()+"/x", roundTrip)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp4", through[len("postgres://"):len(through)-len("/x")])
	if err != nil {
		t.Fatal(err)
	}

	began := time.Now()
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 5)
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "hello" {
		t.Fatalf("got %q, %v; want hello", answer, err)
	}
	if took := time.Since(began); took < roundTrip {
		t.Errorf("there and back took %v, and must take at least %v", took, roundTrip)
	}
	conn.Close()
	stop() // returns when no connection is open
}

func TestTheProxyCountsStatements(t *testing.T) {
	t.Parallel()
	server, client := net.Pipe()
	defer client.Close()
	h := &heard{Conn: server, executed: &atomic.Int64{}}
	message := func(kind string, body string) string {
		return kind + string(binary.BigEndian.AppendUint32(nil, uint32(4+len(body)))) + body
	}
	sent := message("", "\x04\xd2\x16\x2f") + message("", "\x00\x03\x00\x00user\x00E\x00\x00") +
		message("Q", "begin; E\x00") + message("P", "EEEE") +
		message("B", "E") + message("E", "\x00\x00\x00\x00\x00") + message("E", "\x00\x00\x00\x00\x00") + message("S", "") +
		message("Q", "commit\x00")
	go func() {
		for i := range len(sent) { // at every cut
			_, _ = client.Write([]byte{sent[i]})
		}
		client.Close()
	}()
	passed, err := io.ReadAll(h)
	if err != nil || string(passed) != sent || h.executed.Load() != 2 {
		t.Errorf("%d of 2 were counted, %d of %d bytes passed, %v", h.executed.Load(), len(passed), len(sent), err)
	}
}
