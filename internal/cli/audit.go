package cli

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gemworker/gem/audit"
	"github.com/spf13/cobra"
)

func auditCommand(p *Program) *cobra.Command {
	var (
		options audit.Options
		timeout time.Duration
		archive string
		asJSON  bool
	)
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Check that every promise holds, over the whole database or an archive",
		Long: `
Everything is looked at in one read-only snapshot, while workers go on: that
each finished call has its one receipt, that its journal has no gaps and gives
its row when it is replayed, that a hit repeats a real receipt, and that the
rows are there that receipts name. A line a check says what was looked at and
what is wrong, with up to five examples. The exit code is 1 when there is any
fault. A remark is worth knowing and no fault.

Connect as the owner of the tables, who sees every row. A million calls take
about half a minute, and vacuum can not remove dead rows meanwhile.

Rows that people deleted by hand are reported by effects-missing, since nothing
tells them from rows that were lost: --skip effects-missing, where that is so.

--archive FILE checks what gem prune wrote instead, call by call, and needs no
database.

The checks, and what each proves:
` + checks(),
		Example: "  gem audit\n  gem audit --json --skip effects-missing\n  gem audit --archive calls.jsonl",
		Args:    takes("no arguments", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			var printing error
			if !asJSON {
				options.Each = func(r audit.Result) {
					if printing == nil {
						printing = r.Print(out)
					}
				}
			}
			for _, name := range options.Skip {
				if !audit.Known(name) {
					return usage("--skip: there is no check %q; --help lists them", name)
				}
			}
			report, err := p.runAudit(cmd.Context(), archive, timeout, options)
			if err != nil {
				return refusal(err)
			}
			if asJSON {
				printing = printJSON(out, report)
			} else if printing == nil {
				_, printing = fmt.Fprintf(out, "\n%s\n", report.Verdict())
			}
			if printing != nil {
				return printing
			}
			if report.Faults > 0 {
				return exitError{exitFailed}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.BoolVar(&asJSON, "json", false, "print the report as JSON")
	f.StringVar(&archive, "archive", "", "check this archive of pruned calls, and no database")
	f.StringSliceVar(&options.Skip, "skip", nil, "leave these checks out, by commas")
	f.DurationVar(&timeout, "timeout", 15*time.Minute, "how long a statement may take")
	return cmd
}

func (p *Program) runAudit(ctx context.Context, archive string, timeout time.Duration, o audit.Options) (*audit.Report, error) {
	if archive != "" {
		file, err := os.Open(archive)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		return audit.Archive(ctx, file, o)
	}
	db, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	if err := p.checkSchema(ctx, db); err != nil {
		return nil, err
	}
	return audit.Database(ctx, db, timeout, o)
}

// checks lists what is checked, in lines that fit a terminal.
func checks() string {
	const width = 96
	var b strings.Builder
	for _, c := range audit.Checks {
		name := c.Name
		if c.Remark {
			name += " (remark)"
		}
		line := "  " + name + ":"
		for word := range strings.FieldsSeq(c.Proves) {
			if len(line)+1+len(word) > width {
				b.WriteString(line + "\n")
				line = "   "
			}
			line += " " + word
		}
		b.WriteString(line + "\n")
	}
	return strings.TrimRight(b.String(), "\n")
}
