package main

import (
	"io"
	"net"
	"testing"
	"time"
)

func TestTheProxyAddsItsRoundTrip(t *testing.T) {
	server, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() { // says what it hears
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
	stop() // returns when nothing is open any more
}
