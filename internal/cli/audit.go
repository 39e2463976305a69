package cli

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/archive"
	"github.com/gemworker/gem/internal/objectstore"
	"github.com/gemworker/gem/internal/plainfile"
	"github.com/gemworker/gem/internal/store"
	"github.com/spf13/cobra"
)

func auditCommand() *cobra.Command {
	var (
		options audit.Options
		paths   []string
		asJSON  bool
		primary bool
	)
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Check that every promise holds, over the whole database or archives",
		Long: `
Everything is checked in one read-only snapshot, while workers keep running:
each finished call has one receipt; its journal has no gaps, and replaying it
gives the call's row; a hit repeats a real receipt; the rows that receipts name
exist. It prints a line for each check: how many rows were checked, and the
faults, with up to five examples. The exit code is 1 if there is any fault;
remarks do not count.

Connect as the owner of the tables, who sees every row. A million calls take
about half a minute, and vacuum cannot remove dead rows meanwhile.

The check effects-missing also reports rows that people deleted by hand, because
they look like lost rows. Use --skip effects-missing if you have deleted some.

--archive FILE checks an archive of gem prune instead, in temporary tables of
the database, which can be any that has GEM's tables. --archive
s3://BUCKET/PREFIX checks all archives whose keys begin with PREFIX/; see gem
prune --help.
` + usesDatabase + usesReplica + `
If replay on the standby cancels an audit, it starts again, at most twice.

The checks, and the guarantee that each proves:
` + checks(),
		Example: "  gem audit\n  gem audit --json --skip effects-missing\n  gem audit --archive 2025.jsonl --archive " +
			"2026.jsonl",
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range options.Skip {
				if !audit.Known(name) {
					return usage("--skip: unknown check %q; --help lists them", name)
				}
			}
			out := cmd.OutOrStdout()
			if !asJSON {
				options.Each = func(r audit.Result) { _ = r.Print(out) }
			}
			report, err := runAudit(cmd, paths, primary, options)
			switch {
			case err != nil:
				return refusal(err)
			case asJSON:
				err = printJSON(out, report)
			default:
				_, err = fmt.Fprintf(out, "\n%s\n", report.Verdict())
			}
			if err == nil && report.Faults > 0 {
				err = exitError{code: exitFailed}
			}
			return err
		},
	}
	f := cmd.Flags()
	f.BoolVar(&asJSON, "json", false, "print the report as JSON")
	f.StringArrayVar(&paths, "archive", nil,
		"check this archive instead, a file or s3://BUCKET/PREFIX; may be repeated to "+
			"check several together")
	f.BoolVar(&primary, "primary", false, "read from DATABASE_URL even if READ_DATABASE_URL is set")
	f.StringSliceVar(&options.Skip, "skip", nil, "checks to skip, separated by commas")
	f.DurationVar(&options.Timeout, "timeout", 15*time.Minute, "how long a statement may take")
	return cmd
}

func runAudit(cmd *cobra.Command, paths []string, primary bool, o audit.Options) (*audit.Report, error) {
	ctx := cmd.Context()
	var files []audit.File
	for _, path := range paths {
		if objectstore.IsLocation(path) {
			bucket, err := openBucket(path)
			if err != nil {
				return nil, err
			}
			sources, err := archive.InBucket(ctx, bucket)
			if err != nil {
				return nil, err
			}
			for _, source := range sources {
				files = append(files, source)
			}
			continue
		}
		file, err := plainfile.Open(path, os.O_RDONLY, 0)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		files = append(files, archive.NewSource(path, file))
	}
	if files == nil && !primary {
		if report, err := auditReplica(cmd, o); report != nil || err != nil {
			return report, err
		}
	}
	db, err := connect(ctx)
	if err != nil && files != nil {
		err = fmt.Errorf("checking an archive needs a database for temporary tables: %w", err)
	}
	if err != nil {
		return nil, err
	}
	defer db.Close()
	if files != nil {
		return audit.Archives(ctx, db, files, o)
	}
	if err := checkSchema(ctx, db); err != nil {
		return nil, err
	}
	return audit.Database(ctx, db, o)
}

// auditReplica audits the standby of READ_DATABASE_URL. It returns no report if there is none, or if it cannot be used.
func auditReplica(cmd *cobra.Command, o audit.Options) (*audit.Report, error) {
	const tries = 3
	ctx := cmd.Context()
	standby, err := openReplica(ctx)
	if err != nil || standby == nil {
		return nil, err
	}
	defer standby.Close()
	primary, err := connectWhenNeeded(ctx)
	if err != nil {
		return nil, err
	}
	defer primary.Close()
	source := view.NewReplica(standby).Check(ctx, primary)
	fmt.Fprintln(cmd.ErrOrStderr(), source)
	if !source.Standby {
		return nil, nil //nolint:nilnil // as documented
	}
	if err := checkSchema(ctx, standby); err != nil {
		return nil, err
	}
	each := o.Each
	for try := 1; ; try++ {
		var results []audit.Result // printed once the audit is complete, since it may begin again
		if each != nil {
			o.Each = func(r audit.Result) { results = append(results, r) }
		}
		report, err := audit.Database(ctx, standby, o)
		switch {
		case err == nil:
			for _, r := range results {
				each(r)
			}
			return report, nil
		case !store.HasCode(err, "40001"):
			return nil, err
		case try == tries:
			return nil, fmt.Errorf("replay on the standby cancelled the audit %d times: use --primary, or raise "+
				"max_standby_streaming_delay there (%w)", tries, refusal(err))
		}
		fmt.Fprintln(cmd.ErrOrStderr(), "Replay on the standby cancelled the audit. It begins again.")
	}
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
