package main

import (
	"context"
	"fmt"
	"os"
)

func main() {
	ctx := context.Background()
	l, err := startLab(ctx)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	defer l.stop()
	for _, run := range []throughputRun{{20000, true, 0, 20, 20}, {20000, false, 0, 20, 20}} {
		for range 2 {
			for _, c := range []contestant{floor{}, gemWorker{}, riverQueue{true}} {
				r, err := throughput(ctx, l, c, run)
				fmt.Printf("%+v %-14s %.0f/s %.0f allocs %.0f B %v\n", run, c.Name(), r.perSecond, r.allocations, r.allocatedByte, err)
			}
		}
	}
}
