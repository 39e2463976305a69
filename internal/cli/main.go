// Command gem runs tool calls: its worker takes the rows of core_tool_calls and writes a receipt for each. The other
// commands try it out, insert calls, and say what became of them. `gem --help` lists them; each is a file of this folder.
package cli

import (
	"context"
	"os"
)

func main() {
	ctx, stop := untilSignal(context.Background())
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
