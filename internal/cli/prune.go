package cli

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/archive"
	"github.com/gemworker/gem/internal/envvar"
	"github.com/gemworker/gem/internal/objectstore"
	"github.com/gemworker/gem/internal/store"
	"github.com/spf13/cobra"
)

func pruneCommand() *cobra.Command {
	var (
		options   archive.PruneOptions
		olderThan string
		keepKeys  string
		file      string
		noArchive bool
	)
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove old finished calls, after writing them to an archive",
		Long: `
It removes calls that ended longer ago than --older-than, with their receipts
and journals, in small steps that do not disturb workers. Each step is written
to the archive before it commits, so an interrupted run loses nothing. The next
run continues, and may write a few lines twice. The archive is a JSONL file with
a line for each call; gem audit --archive checks it. Protect it like the
database.

A file whose name ends in .gz is compressed. With s3://BUCKET/PREFIX, each step
becomes a compressed object of its own. The store is AWS's, or the one at
AWS_ENDPOINT_URL_S3. The access key is in AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY and, if it is temporary, AWS_SESSION_TOKEN. It must be
allowed to put objects; for gem audit, to list and get them.

It keeps a call that another remaining call needs, because that call was made on
its behalf or repeats its receipt. It also removes counts of rules' limits that
are older than any recorded rule needs, and documents of the same age that no
open call names. Rows of other tables remain.

After the successful receipt of a key is removed, the next call with the key
runs, unless --keep-keys keeps the data to repeat the result: the key, the
result, a hash of the input and the caller. A run with --keep-keys also removes
kept keys that are older than that. Choose --older-than, or --keep-keys, longer
than any client may keep retrying. --older-than must not be shorter than the
longest time that the rules look back.

Connect as the owner of the tables: no other role may prune.
` + usesDatabase,
		Example: "  gem prune --older-than 90d --archive calls.jsonl\n  gem prune --older-than 90d --dry-run",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if options.OlderThan, err = age("--older-than", "a call ended", olderThan); err != nil {
				return err
			}
			if keepKeys != "" {
				if options.KeepKeys, err = age("--keep-keys", "a call ended", keepKeys); err != nil {
					return err
				}
				if options.KeepKeys <= options.OlderThan {
					return usage("--keep-keys is %s, and must be longer than --older-than, %s", keepKeys, olderThan)
				}
			}
			switch {
			case cmd.Flags().Changed("batch") && (options.Batch < 1 || options.Batch > 10_000):
				return usage("--batch is %d, and must be from 1 to 10000", options.Batch)
			case file != "" && noArchive:
				return usage("--archive and --no-archive contradict each other")
			}
			if file == "" && !noArchive {
				file = strings.TrimSpace(os.Getenv("GEM_ARCHIVE"))
			}
			if file == "" && !noArchive && !options.DryRun {
				return usage("name the archive for removed calls with --archive or GEM_ARCHIVE, or do not keep them with " +
					"--no-archive")
			}
			return prune(cmd, options, file)
		},
	}
	f := cmd.Flags()
	f.StringVar(&olderThan, "older-than", "", "how long ago a call must have ended, such as 90d, 12h or 1d12h (w, d, h, "+
		"m, s)")
	f.StringVar(&file, "archive", "", "the file to append removed calls to, or s3://BUCKET/PREFIX; by default GEM_ARCHIVE")
	f.StringVar(&keepKeys, "keep-keys", "",
		"how long the key of a removed call is kept, from the call's end, such as 365d")
	f.BoolVar(&noArchive, "no-archive", false, "do not archive removed calls")
	f.IntVar(&options.Batch, "batch", 0,
		"how many calls are removed in a step, 1 to 10000 (default 1000, with s3:// 5000)")
	f.BoolVar(&options.DryRun, "dry-run", false, "only count what would be removed")
	return cmd
}

func prune(cmd *cobra.Command, o archive.PruneOptions, path string) error {
	ctx := cmd.Context()
	if path != "" && !objectstore.IsLocation(path) && !strings.HasSuffix(path, ".jsonl") &&
		!strings.HasSuffix(path, ".jsonl.gz") {
		return usage("the archive must be s3://BUCKET/PREFIX, or a file whose name ends in .jsonl or .jsonl.gz")
	}
	var bucket *objectstore.Bucket
	if objectstore.IsLocation(path) && !o.DryRun {
		var err error
		if bucket, err = openBucket(path); err != nil {
			return err
		}
		o.Batch = cmp.Or(o.Batch, objectBatch)
	}
	db, err := connect(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := checkSchema(ctx, db); err != nil {
		return err
	}
	back, version, err := archive.LookBack(ctx, db)
	if err != nil {
		return pruneRefusal(err)
	}
	if o.OlderThan < back {
		return usage("--older-than is shorter than %s, the time that the rules of version %s look back: choose a longer one",
			back, version)
	}
	switch {
	case bucket != nil:
		o.Archive = archive.NewObjects(bucket, time.Now())
	case path != "" && !o.DryRun:
		file, err := archive.Open(path)
		if err != nil {
			return fmt.Errorf("open the archive: %w", err)
		}
		defer file.Close()
		o.Archive = file
	}

	said := time.Now()
	o.Each = func(done archive.Pruned) {
		if time.Since(said) > 10*time.Second {
			said = time.Now()
			fmt.Fprintf(cmd.ErrOrStderr(), "%s removed so far\n", count(int(done.Removed), "call"))
		}
	}
	done, err := archive.Prune(ctx, db, o)
	if err != nil {
		if done.Removed > 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s removed before this; run it again to continue\n",
				count(int(done.Removed), "call"))
		}
		return pruneRefusal(err)
	}
	what := count(int(done.Removed), "call")
	if o.DryRun {
		what += " to be"
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s removed that ended before %s; %d others of that age remain, because other calls "+
		"need them\n",
		what, moment(done.EndedBefore), done.Kept)
	if done.Counted > 0 {
		fmt.Fprintf(cmd.OutOrStdout(), "%s of rules removed, which no rule needs\n",
			count(int(done.Counted), "counted call"))
	}
	for _, domain := range slices.Sorted(maps.Keys(done.Forgotten)) {
		fmt.Fprintf(cmd.OutOrStdout(), "%d old rows of %s.* removed\n", done.Forgotten[domain], domain)
	}
	if n := len(done.TooLong); n > 0 {
		return fmt.Errorf("%s could not be archived and stayed, since Postgres cannot write the line of the archive (first: "+
			"%s): remove with --no-archive what you need not keep", count(n, "call"), done.TooLong[0])
	}
	return nil
}

// pruneRefusal is refusal for a command that needs the owner.
func pruneRefusal(err error) error {
	if store.IsForbidden(err) {
		return fmt.Errorf("this role may not prune: connect as the owner of the tables (%w)", refusal(err))
	}
	return refusal(err)
}

// objectBatch is how many calls are removed in a step that becomes an object.
const objectBatch = 5000

// openBucket opens the bucket of s3://BUCKET/PREFIX with the access key from the environment.
func openBucket(location string) (*objectstore.Bucket, error) {
	at, err := objectstore.ParseLocation(location)
	if err != nil {
		return nil, usage("the archive: %w", err)
	}
	var c objectstore.Config
	if err := envvar.Read(os.Getenv, &c); err != nil {
		return nil, err
	}
	bucket, err := objectstore.Open(at, &c)
	if err != nil {
		return nil, usage("the archive: %w", err)
	}
	return bucket, nil
}

var ageForm = regexp.MustCompile(`^(?:(\d{1,3})w)?(?:(\d{1,5})d)?(?:(\d{1,5})h)?(?:(\d{1,6})m)?(?:(\d{1,7})s)?$`)

// age parses the text of a flag as a duration since something happened. It may include weeks and days.
func age(flag, what, text string) (time.Duration, error) {
	var sum time.Duration
	parts := ageForm.FindStringSubmatch(text)
	for i, unit := range []time.Duration{7 * 24 * time.Hour, 24 * time.Hour, time.Hour, time.Minute, time.Second} {
		if parts != nil && parts[i+1] != "" {
			n, err := strconv.Atoi(parts[i+1])
			if err != nil {
				return 0, err
			}
			sum += time.Duration(n) * unit
		}
	}
	if sum <= 0 || sum > 100*365*24*time.Hour {
		return 0, usage("%s is %q, and must be a duration since %s, such as 90d, 12h or 1d12h", flag, text, what)
	}
	return sum, nil
}
