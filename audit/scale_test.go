package audit_test

import (
	"context"
	_ "embed"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/internal/archive"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/jackc/pgx/v5/pgxpool"
)

// How long it takes with a million calls:
//
//	go test ./audit -run '^$' -bench . -benchtime 1x -timeout 1h -calls 1000000
var callCount = flag.Int("calls", 20_000, "how many calls the benchmarks make")

//go:embed testdata/calls.sql
var makeCalls string

// manyCalls is a database with -calls calls and three times as many events.
func manyCalls(b *testing.B) *pgxpool.Pool {
	b.Helper()
	ctx := context.Background()
	db := testdb.Pool(b, testdb.New(b, migrations.Sources(builtin.Domains()...)...))
	tx, err := db.Begin(ctx)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err := tx.Exec(ctx, strings.ReplaceAll(makeCalls, "{{calls}}", strconv.Itoa(*callCount))); err != nil {
		b.Fatal(err)
	}
	if err := tx.Commit(ctx); err != nil {
		b.Fatal(err)
	}
	testdb.Exec(b, db, "vacuum analyze")
	return db
}

func sound(b *testing.B, report *audit.Report, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
	if found := reported(report); len(found) > 0 {
		b.Fatal(found)
	}
}

func BenchmarkDatabase(b *testing.B) {
	db := manyCalls(b)
	for b.Loop() {
		report, err := audit.Database(context.Background(), db, audit.Options{})
		sound(b, report, err)
	}
	b.ReportMetric(float64(*callCount*b.N)/b.Elapsed().Seconds(), "calls/s")
}

// What is written can be read again.
func BenchmarkPruneAndArchive(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		db, path := manyCalls(b), filepath.Join(b.TempDir(), "calls.jsonl")
		file, err := archive.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		began := time.Now()
		done, err := archive.Prune(context.Background(), db,
			archive.PruneOptions{OlderThan: 90 * 24 * time.Hour, Archive: file})
		if err != nil || done.Removed != int64(*callCount*96/100) {
			b.Fatalf("%+v %v", done, err)
		}
		b.ReportMetric(float64(done.Removed)/time.Since(began).Seconds(), "pruned/s")
		b.StopTimer()
		if err := file.Close(); err != nil {
			b.Fatal(err)
		}
		kept, err := os.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		began = time.Now()
		report, err := audit.Archives(context.Background(), db, []audit.File{kept}, audit.Options{})
		sound(b, report, err)
		b.ReportMetric(float64(done.Removed)/time.Since(began).Seconds(), "audited/s")
		if err := kept.Close(); err != nil {
			b.Fatal(err)
		}
		report, err = audit.Database(context.Background(), db, audit.Options{})
		sound(b, report, err)
		b.StartTimer()
	}
}
